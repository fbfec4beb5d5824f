//! The points that a share needs, and their way from the callers: `kernels/share_points.cu`.
//!
//! A share keeps the points of its leaves, and copies of the sources of other leaves that it sums point by point (*ghosts*).
//! They keep their order, and get numbers of their own. The caller of each rank knows the leaf of each of its points, and so
//! the shares to which the point goes. Strengths take the same way in each evaluation.

use super::{Cutter, programs};
use crate::arrange::Items;
use crate::device::{Arg, Buffer, ByItem};
use crate::joint::{JointPoints, OwnOrder};
use crate::link::Link;
use crate::rounds::Slots;
use crate::tree::{DevicePoints, DeviceTree};
use fmm_traits::Error;
use std::ops::Range;
use std::sync::Arc;

/// Threads per block, as in `share_points.cu`.
const BLOCK: usize = 256;
/// Bytes of a point in a message: three coordinates, its place and its row.
const BYTES_OF_A_POINT: usize = 32;

/// The leaves with points of a set, in the order of their points.
pub(super) struct Leaves {
    kernels: ByItem,
    /// Number of leaves.
    n: usize,
    /// The place of the first point of each leaf among all points.
    starts: Buffer<u64>,
    /// For each leaf the shares that need its points, as bits.
    readers: Buffer<u32>,
    /// The number of points that this share keeps before each leaf, and of all that it keeps.
    before: Buffer<u64>,
    /// Number of points that this share keeps.
    kept: usize,
    /// Which of the kept points are those of the share's own leaves. The others are ghosts.
    own: Range<usize>,
}

/// The own points of a caller, by the shares that need them.
pub(super) struct Ways {
    /// The rows of the caller that go to each share, in tree order.
    pub sends: Vec<Slots>,
    /// The kept points that come from the caller of each rank, in tree order.
    pub receives: Vec<Slots>,
}

impl Leaves {
    /// The kernels of `share_points.cu`.
    pub fn kernels(&self) -> &ByItem {
        &self.kernels
    }
    /// Number of points that this share keeps.
    pub fn kept(&self) -> usize {
        self.kept
    }
    /// The points of the leaves of this share among the kept points.
    pub fn own(&self) -> Range<usize> {
        self.own.clone()
    }
    /// What kernels need to number points anew: `Kept` of `kept.cuh`, and the number of leaves.
    pub fn numbers(&self) -> [Arg; 2] {
        [(&self.starts, &self.before).into(), (self.n as u64).into()]
    }
}

impl Cutter {
    /// The leaves with points of a set: 0 for sources and 1 for targets. `near` are the boxes whose sources each share reads
    /// ([`near`](Cutter::near)).
    pub(super) fn leaves(&self, tree: &DeviceTree, set: usize, near: Option<&Buffer<u32>>) -> Result<Leaves, Error> {
        let (device, what) = (&self.device, "leaves of a share");
        let kernels = ByItem::new(device, device.fixed("share_points", programs::share_points)?, BLOCK as u32);
        let (boxes, of_sources) = (Arg::from(&self.boxes), Arg::from(u32::from(set == 0)));
        let flags = device.alloc(self.n, what)?;
        // SAFETY: arguments as in share_points.cu; there is a flag for each box.
        unsafe {
            kernels.threads("leaf_flags", self.n, &[boxes, (self.n as u32).into(), of_sources, (&flags).into()])?
        };
        let [(Items { boxes: mut list, .. }, _)] = self.arranger(tree).listed(&[flags])?;
        let (n, points) = (list.len(), self.cuts[self.shares][set] as usize);
        let (count, mut starts) = (Arg::from(n as u32), device.alloc(n, what)?);
        // SAFETY: as above; there is a start for each leaf.
        unsafe { kernels.threads("leaf_starts", n, &[boxes, (&list).into(), count, of_sources, (&starts).into()])? };
        let bits = usize::BITS - points.leading_zeros();
        self.primitives.sort(&mut starts, &mut list, false, n, 0..bits)?;
        let ends: Vec<u32> = self.cuts[1..].iter().map(|cut| cut[set]).collect();
        let ends = device.upload(&ends, "cuts")?;
        let (readers, kept) = (device.alloc(n, what)?, device.alloc(n, what)?);
        let near = near.map_or(Arg::NULL, Arg::from);
        let args = [boxes, (&list).into(), count, of_sources, near, (&ends).into()];
        let args = [&args[..], &[(self.me as u32).into(), (&readers).into(), (&kept).into()]].concat();
        // SAFETY: as above; each leaf has points, and belongs to a share.
        unsafe { kernels.threads("leaf_readers", n, &args)? };
        let before = device.alloc(n + 1, what)?;
        self.primitives.scan([(&kept, &before)], n)?;
        let total = device.download_range(&before, n..n + 1, what)?[0] as usize;
        let mut leaves = Leaves { kernels, n, starts, readers, before, kept: total, own: 0..0 };
        let cuts = [self.me, self.me + 1].map(|k| self.cuts[k][set]);
        leaves.own = self.numbered(&leaves, cuts)?;
        Ok(leaves)
    }

    /// The numbers of kept points before two places at which leaves begin, or behind the last point.
    fn numbered(&self, leaves: &Leaves, places: [u32; 2]) -> Result<Range<usize>, Error> {
        let (device, what) = (&self.device, "cuts");
        let (there, found) = (device.upload(&places, what)?, device.alloc::<u64>(2, what)?);
        let args = [&leaves.numbers()[..], &[(&there).into(), 2u32.into(), (&found).into()]].concat();
        // SAFETY: arguments as in share_points.cu.
        unsafe { leaves.kernels.threads("kept_before_places", 2, &args)? };
        let found = device.download(&found, what)?;
        Ok(found[0] as usize..found[1] as usize)
    }

    /// Brings the points of all callers to the shares that need them. Returns the points that this share keeps, and the ways.
    pub(super) fn brought(
        &self,
        leaves: &Leaves,
        points: &JointPoints,
        own: &OwnOrder,
    ) -> Result<(DevicePoints, Ways), Error> {
        let (device, what, given) = (&self.device, "points of other ranks", points.own().rows());
        let (rows, places) = (Arg::from(&own.rows), Arg::from(&own.places));
        let [items, sends] = self.sent(leaves, own)?;
        let pack = |to: usize, address: u64| {
            let n = items[to].len();
            let args = [items[to].arg(), (n as u64).into(), rows, places, given.into(), Arg::address(address)];
            // SAFETY: arguments as in share_points.cu; the message has room for n points.
            unsafe { leaves.kernels.threads("pack_points", n, &args) }
        };
        let bytes: Vec<usize> = sends.iter().map(|slots| BYTES_OF_A_POINT * slots.len()).collect();
        let came = Link::new(device, points.messages().clone())?.swapped(&bytes, pack)?;
        let kept = DevicePoints::alloc(device, 3, leaves.kept)?;
        let mut receives = Vec::new();
        for (from, message) in came.into_iter().enumerate() {
            let n = message.as_ref().map_or(bytes[from], |message| message.len()) / BYTES_OF_A_POINT;
            let (slots, [numbers, count]) = (device.alloc(n, what)?, leaves.numbers());
            let first = Arg::from(points.of_rank(from).start as u32);
            let to = [numbers, count, first, (leaves.kept as u64).into(), (&kept.xyz).into(), (&kept.order).into()];
            let (number, to) = (Arg::from(n as u64), [&to[..], &[(&slots).into()]].concat());
            // SAFETY: as above; the points of the message are some of those that this share keeps.
            unsafe {
                match message {
                    Some(message) => {
                        let args = [Arg::address(message.address()), number];
                        leaves.kernels.threads("put_points", n, &[&args[..], &to].concat())?;
                    }
                    None => {
                        let args = [items[from].arg(), number, rows, places, given.into()];
                        leaves.kernels.threads("keep_points", n, &[&args[..], &to].concat())?;
                    }
                }
            }
            receives.push(Slots::all(slots));
        }
        Ok((kept, Ways { sends, receives }))
    }

    /// The own points that go to each share, in tree order: their numbers in this order, and the rows of the caller.
    fn sent(&self, leaves: &Leaves, own: &OwnOrder) -> Result<[Vec<Slots>; 2], Error> {
        let (n, [numbers, count]) = (own.len(), leaves.numbers());
        let items = self.by_share(leaves, n, |mine, goes| {
            let args = [(&own.places).into(), (n as u64).into(), numbers, count, (&leaves.readers).into()];
            let args = [&args[..], &[(self.shares as u32).into(), mine, goes]].concat();
            // SAFETY: arguments as in share_points.cu; the places are those of points in the leaves.
            unsafe { leaves.kernels.threads("own_readers", n, &args) }
        })?;
        let all = items.iter().map(Slots::len).sum();
        let rows = self.device.alloc(all, "points for other ranks")?;
        let args = [(&own.rows).into(), items[0].whole(), (all as u64).into(), 0u32.into(), (&rows).into()];
        // SAFETY: as above; there is a row for each item.
        unsafe { leaves.kernels.threads("take_and_add", all, &args)? };
        let rows = Arc::new(rows);
        let rows = items.iter().map(|slots| Slots::of(&rows, slots)).collect();
        Ok([items, rows])
    }

    /// For each share, which of `n` items go there, in order. `flag` sets for each item the bits of its shares, in its first
    /// argument; and how many items of each block go to each share, in its second (`share_points.cu`).
    pub(super) fn by_share(
        &self,
        leaves: &Leaves,
        n: usize,
        flag: impl FnOnce(Arg, Arg) -> Result<(), Error>,
    ) -> Result<Vec<Slots>, Error> {
        let (device, what, grid) = (&self.device, "points for other ranks", n.div_ceil(BLOCK));
        let (own, numbers) = (device.alloc::<u32>(n, what)?, device.alloc(self.shares * grid, what)?);
        flag((&own).into(), (&numbers).into())?;
        let to = device.alloc(self.shares * grid + 1, what)?;
        self.primitives.scan([(&numbers, &to)], self.shares * grid)?;
        let ends = device.entries(&(0..=self.shares).map(|share| (&to, share * grid)).collect::<Vec<_>>(), what)?;
        let items = device.alloc(ends[self.shares] as usize, what)?;
        let args = [(&own).into(), (n as u64).into(), (self.shares as u32).into(), (&to).into(), (&items).into()];
        // SAFETY: arguments as in share_points.cu; there is room for all that go to some share.
        unsafe { leaves.kernels.threads("items_of_shares", n, &args)? };
        let items = Arc::new(items);
        Ok(ends.windows(2).map(|ends| Slots::new(&items, ends[0] as usize..ends[1] as usize)).collect())
    }
}
