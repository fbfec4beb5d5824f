//! The way of values from a share to the callers of its targets.

use super::Cutter;
use crate::device::{Arg, Buffer, ByItem};
use crate::joint::{JointPoints, OwnOrder};
use crate::programs;
use crate::ranks::{DeviceRound, Slots};
use crate::tree::DevicePoints;
use fmm_traits::Error;
use std::ops::Range;
use std::sync::Arc;

/// Threads per block.
const BLOCK: u32 = 256;

impl Cutter {
    /// The way of values from the targets `share` of the kept `points` to their callers. `own` is the order of the own targets.
    ///
    /// A message has the order of its receiver, the caller, who writes values in order. The sender reads them at random, which
    /// takes less time than to write at random.
    pub(super) fn values(
        &self,
        points: &DevicePoints,
        share: Range<usize>,
        own: &OwnOrder,
        joint: &JointPoints,
    ) -> Result<DeviceRound, Error> {
        let (device, n) = (&self.device, own.len());
        let places: Buffer<u32> = device.alloc(n, "rows of callers")?;
        let kernels = ByItem::new(device, device.fixed("share_points", programs::share_points)?, BLOCK);
        let args = [(&own.rows).into(), (&own.places).into(), (n as u64).into(), (&places).into()];
        // SAFETY: arguments as in share_points.cu; the rows are a permutation.
        unsafe { kernels.threads("places_by_row", n, &args)? };
        let of_callers: Vec<u32> = (0..self.shares).map(|rank| joint.of_rank(rank).end as u32).collect();
        let of_shares: Vec<u32> = self.cuts[1..].iter().map(|cut| cut[1]).collect();
        let sends = self.parted(points.order.at(share.start), share, &of_callers, true)?;
        let receives = self.parted((&places).into(), 0..n, &of_shares, false)?;
        let mut round = DeviceRound::default();
        sends.into_iter().enumerate().for_each(|(rank, slots)| round.send(rank, slots));
        receives.into_iter().enumerate().for_each(|(rank, slots)| round.receive(rank, slots));
        Ok(round)
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
