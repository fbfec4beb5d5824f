//! The ways between the arrays of callers and a tree that ranks share.

use super::{Cutter, pieces};
use crate::device::{Arg, Buffer};
use crate::ranks::{DeviceRound, DeviceRoutes, Slots};
use crate::tree::{DevicePoints, DeviceTree};
use fmm_traits::Error;
use std::ops::Range;
use std::sync::Arc;

/// The order of rows in messages.
///
/// A message has the order in which its receiver writes the rows: that of the tree for strengths, that of the caller for
/// values. The sender reads rows at random, which takes less time than to write them at random.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// Of the tree.
    Tree,
    /// Of the caller's array.
    Caller,
}

/// The points of a set, seen from this rank.
struct Set<'a> {
    points: &'a DevicePoints,
    /// The points of this share, in tree order.
    share: Range<usize>,
    /// The rows of each caller.
    pieces: Vec<Range<usize>>,
    /// Where the points of each share end, in tree order.
    ends: Vec<u32>,
    /// The place in tree order of each row of this rank's caller.
    places: Buffer<u32>,
}

impl Cutter {
    /// The ways between callers and the tree: strengths go to the share of their source, and from there to the shares that
    /// sum it point by point (`ghosts`); values go back. `given` are the numbers of sources and targets of each caller.
    pub(super) fn routes(
        &self,
        tree: &DeviceTree,
        ghosts: DeviceRound,
        given: &[Vec<usize>; 2],
    ) -> Result<DeviceRoutes, Error> {
        let sources = self.set(&tree.sources, 0, &given[0])?;
        let separate = !Arc::ptr_eq(&tree.sources, &tree.targets);
        let targets = separate.then(|| self.set(&tree.targets, 1, &given[1])).transpose()?;
        let (mut strengths, mut values) = (DeviceRound::default(), DeviceRound::default());
        for (rank, [of_share, of_caller]) in self.ways(&sources, By::Tree)?.into_iter().enumerate() {
            strengths.send(rank, of_caller);
            strengths.receive(rank, of_share);
        }
        for (rank, [of_share, of_caller]) in
            self.ways(targets.as_ref().unwrap_or(&sources), By::Caller)?.into_iter().enumerate()
        {
            values.send(rank, of_share);
            values.receive(rank, of_caller);
        }
        Ok(DeviceRoutes { given: [0, 1].map(|set| given[set][self.me]), strengths, ghosts, values })
    }

    /// The points of a set: 0 for sources and 1 for targets.
    fn set<'a>(&self, points: &'a DevicePoints, set: usize, given: &[usize]) -> Result<Set<'a>, Error> {
        let (pieces, share) = (pieces(given), self.share(self.me)[set].clone());
        let ends = self.cuts[1..].iter().map(|cut| cut[set]).collect();
        let places = points.places(&self.device, pieces[self.me].clone())?;
        Ok(Set { points, share, pieces, ends, places })
    }

    /// For each rank, the points of this share that its caller has, and the rows of this rank's caller that are in its
    /// share, both in the same order.
    fn ways(&self, set: &Set, by: By) -> Result<Vec<[Slots; 2]>, Error> {
        let ends: Vec<u32> = set.pieces.iter().map(|rows| rows.end as u32).collect();
        let share = &set.share;
        let of_share = self.parted(set.points.order.at(share.start), share.clone(), &ends, by == By::Caller)?;
        let of_caller = self.parted((&set.places).into(), 0..set.places.len(), &set.ends, by == By::Tree)?;
        Ok(of_share.into_iter().zip(of_caller).map(|(a, b)| [a, b]).collect())
    }

    /// Divides a range of items, each of which has a value, into parts: part k has the items with `ends[k - 1] <= value <
    /// ends[k]`. Example: points, whose values are rows of callers, with the ends of the callers' rows. Items ascend in a
    /// part or, if `by_value`, their values do.
    fn parted(&self, values: Arg, of: Range<usize>, ends: &[u32], by_value: bool) -> Result<Vec<Slots>, Error> {
        let (device, count, n, what) = (&self.device, ends.len(), of.len(), "rows of callers");
        let (mut keys, mut slots) = (device.alloc::<u64>(n, what)?, device.alloc(n, what)?);
        let (ends_there, parts) = (device.upload(ends, what)?, Arg::from(count as u32));
        let args = [values, (n as u32).into(), (of.start as u32).into(), (&ends_there).into(), parts];
        let args = [&args[..], &[u32::from(by_value).into(), (&keys).into(), (&slots).into()]].concat();
        // SAFETY: arguments as in shares.cu; there is a value, a key and a slot for each item.
        unsafe { self.kernels.threads("part_keys", n, &args)? };
        let largest = if by_value { ends[count - 1] as usize } else { count };
        self.primitives.sort(&mut keys, &mut slots, false, n, 0..usize::BITS - largest.leading_zeros())?;
        let found = device.alloc(count, what)?;
        let keys_of_ends = if by_value { Arg::from(&ends_there) } else { Arg::NULL };
        let args = [(&keys).into(), (n as u64).into(), keys_of_ends, parts, (&found).into()];
        // SAFETY: as above; there is a position for each part.
        unsafe { self.kernels.threads("part_ends", count, &args)? };
        let (found, slots): (Vec<u64>, _) = (device.download_range(&found, 0..count, what)?, Arc::new(slots));
        let mut first = 0;
        let part = |&end: &u64| Slots::new(&slots, std::mem::replace(&mut first, end as usize)..end as usize);
        Ok(found.iter().map(part).collect())
    }
}
