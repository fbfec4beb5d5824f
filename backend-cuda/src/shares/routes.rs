//! The way of values from a share to the callers of its targets.

use super::Cutter;
use super::points::Leaves;
use crate::device::{Arg, Buffer};
use crate::joint::{JointPoints, OwnOrder};
use crate::link::Link;
use crate::rounds::{DeviceRound, Slots};
use fmm_traits::Error;

impl Cutter {
    /// The way of values from the share of each rank to the callers of its targets. `own` is the order of the own targets, and
    /// `leaves` are those of the targets.
    ///
    /// A message has the order of its receiver, the caller, who writes values in order. The sender reads them at random, which
    /// takes less time than to write at random. The caller tells the places of its rows to the shares.
    pub(super) fn values(&self, leaves: &Leaves, own: &OwnOrder, joint: &JointPoints) -> Result<DeviceRound, Error> {
        let (device, n, what) = (&self.device, own.len(), "rows of callers");
        let places: Buffer<u32> = device.alloc(n, what)?;
        let args = [(&own.rows).into(), (&own.places).into(), (n as u64).into(), (&places).into()];
        // SAFETY: arguments as in share_points.cu; the rows are a permutation.
        unsafe { leaves.kernels().threads("places_by_row", n, &args)? };
        let ends: Vec<u32> = self.cuts[1..].iter().map(|cut| cut[1]).collect();
        let ends = device.upload(&ends, what)?;
        let mine = self.by_share(leaves, n, |own, numbers| {
            let args = [(&places).into(), (n as u64).into(), (&ends).into(), (self.shares as u32).into()];
            // SAFETY: as above; each place lies before the end of the last share.
            unsafe { leaves.kernels().threads("row_shares", n, &[&args[..], &[own, numbers]].concat()) }
        })?;
        // The targets of a share lie behind each other among the points that it keeps.
        let first = (leaves.own().start as u32).wrapping_sub(self.cuts[self.me][1]);
        let take = |from: Arg, items: Arg, count: usize, added: u32, to: Arg| {
            let args = [from, items, (count as u64).into(), added.into(), to];
            // SAFETY: as above; the items are some of those that `from` has.
            unsafe { leaves.kernels().threads("take_and_add", count, &args) }
        };
        let bytes: Vec<usize> = mine.iter().map(|rows| rows.len() * size_of::<u32>()).collect();
        let tell =
            |to: usize, address: u64| take((&places).into(), mine[to].arg(), mine[to].len(), 0, Arg::address(address));
        let came = Link::new(device, joint.messages().clone())?.swapped(&bytes, tell)?;
        let mut sends = Vec::new();
        for (rank, message) in came.into_iter().enumerate() {
            let count = message.as_ref().map_or(bytes[rank], |message| message.len()) / size_of::<u32>();
            let slots: Buffer<u32> = device.alloc(count, what)?;
            match message {
                Some(told) => take(Arg::address(told.address()), Arg::NULL, count, first, (&slots).into())?,
                None => take((&places).into(), mine[rank].arg(), count, first, (&slots).into())?,
            }
            sends.push(Slots::all(slots));
        }
        Ok(DeviceRound::of(sends, mine))
    }
}
