//! The affine part of locals on the device: `kernels/affine.cu`.

use super::DeviceScalar;
use super::plan::{Equivalent, Placed};
use crate::arrange::Items;
use crate::base::Base;
use crate::device::{Arg, Buffer, Device, blocks};
use fmm_kernels::equivalent::Affine;
use fmm_traits::Error;

/// Threads per block in `separate`, which uses one warp per box.
const BLOCK: u32 = 128;

/// The affine parts of all locals, with the tables to compute them.
#[derive(Debug)]
pub(super) struct DeviceAffine<T> {
    components: usize,
    factor: f64,
    squares: f64,
    slopes: Buffer<f64>,
    /// For each value at a target: its place in the affine part, or −1.
    values: Buffer<i32>,
    /// One row per box.
    parts: Buffer<T>,
}

impl<T: DeviceScalar> DeviceAffine<T> {
    /// Copies `affine` to the device and allocates zero parts for `boxes` boxes.
    pub fn new(device: &Device, affine: &Affine<T>, boxes: usize) -> Result<Self, Error> {
        let slopes: Vec<f64> = affine.slopes().data.iter().map(|x| x.f64()).collect();
        let values: Vec<i32> = affine.values().iter().map(|k| k.map_or(-1, |k| k as i32)).collect();
        Ok(DeviceAffine {
            components: affine.components(),
            factor: affine.factor().f64(),
            squares: affine.squares().f64(),
            slopes: device.upload(&slopes, "operators")?,
            values: device.upload(&values, "operators")?,
            parts: device.zeros(boxes * affine.len(), "locals")?,
        })
    }

    /// The arguments of `l2p.cu`: the parts (null if there are none), the length of a row, and the place of each value.
    pub fn at_targets(&self) -> [Arg; 3] {
        let parts = if self.components == 0 { Arg::NULL } else { Arg::from(&self.parts) };
        [parts, (4 * self.components as u32).into(), (&self.values).into()]
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.slopes.bytes() + self.values.bytes() + self.parts.bytes()
    }
}

impl<T: DeviceScalar> Equivalent<T> {
    /// Enqueues the separation of the affine parts from the check values of the locals of `level`.
    ///
    /// # Safety
    /// The affine parts of the level above are complete.
    pub(super) unsafe fn separate(
        &self,
        base: &Base,
        w: &Placed<T>,
        active: &Items,
        level: usize,
    ) -> Result<(), Error> {
        let (affine, (first, count)) = (&w.affine, active.of(level));
        if affine.components == 0 {
            return Ok(());
        }
        let args = [
            (&base.boxes).into(),
            (&base.tree.boxes.octant).into(),
            active.boxes.at(first),
            (count as u32).into(),
            (affine.components as u32).into(),
            (self.shape.points as u32).into(),
            (&w.tables.inner).into(),
            affine.squares.into(),
            (&affine.slopes).into(),
            affine.factor.into(),
            (&w.workspace.check).into(),
            (self.shape.check as u32).into(),
            (&affine.parts).into(),
        ];
        let grid = (blocks(32 * count, BLOCK as usize)?, 1);
        // SAFETY: arguments as in affine.cu; check values and parts have a row for each box.
        unsafe { base.device().launch(&self.programs.affine, "separate", grid, BLOCK, &args) }
    }
}
