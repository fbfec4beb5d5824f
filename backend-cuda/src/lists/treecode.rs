//! The edges of `fmm_tree::treecode`, made on the device and equal row by row: `kernels/treecode.cu`.

use super::{DeviceLists, Finder, Scope};
use crate::device::{Arg, blocks};
use crate::programs;
use crate::tree::DeviceTree;
use fmm_traits::Error;
use fmm_tree::TreecodeOptions;

/// Threads per block: one warp.
const WARP_THREADS: u32 = 32;

/// The region where the multipole of a box is valid, for any θ. The target leaf must lie outside a sphere and a cube
/// around the centre of the box, and the boxes must be at least a distance apart.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Acceptance {
    /// Radius of the sphere, in sides of the box; 0 for no sphere.
    pub sphere: f64,
    /// Half the side of the cube, in sides of the box; 0 for no cube.
    pub cube: f64,
    /// Least distance of the boxes, in the user's units.
    pub near: f64,
}

/// The edges of a treecode of `tree`: P2M, M2M, M2P and P2P.
///
/// # Errors
/// [`Error::Parameter`] when θ is not positive and finite, and errors of the device.
pub fn treecode(tree: &DeviceTree, options: &TreecodeOptions, acceptance: Acceptance) -> Result<DeviceLists, Error> {
    treecode_of(tree, &Scope::All, options, acceptance)
}

/// [`treecode`] for some targets.
pub(crate) fn treecode_of(
    tree: &DeviceTree,
    scope: &Scope,
    options: &TreecodeOptions,
    acceptance: Acceptance,
) -> Result<DeviceLists, Error> {
    let theta = options.theta;
    if !(theta > 0.0 && theta.is_finite()) {
        return Err(Error::Parameter { name: "theta", value: theta, requirement: "must be positive and finite" });
    }
    let (device, finder) = (&tree.device, Finder::new(tree, scope)?);
    let functions = device.fixed("treecode", programs::treecode)?;
    let rule = device.upload(&[theta, acceptance.sphere, acceptance.cube, acceptance.near], "criterion")?;
    let few = options.m2p_min_sources.min(u32::MAX as usize) as u32;
    let common: [Arg; 4] = [(&finder.boxes).into(), (finder.n as u32).into(), (&rule).into(), few.into()];
    let with = |rest: &[Arg]| -> Vec<Arg> { common.iter().chain(rest).copied().collect() };
    let grid = (blocks(finder.n, 1)?, 1);
    let counts = [finder.counts()?, finder.counts()?, finder.counts()?, finder.counts()?];
    let lengths = with(&[(&counts[2]).into(), (&counts[3]).into()]);
    // SAFETY: arguments as in treecode.cu; the counts have an entry for each box.
    unsafe { device.launch(&functions, "treecode_count", grid, WARP_THREADS, &lengths)? };
    let [m2l, p2l, m2p, p2p] = finder.filled(&counts, |[_, _, m2p, p2p]| {
        let starts = [(&m2p.starts).into(), (&p2p.starts).into()];
        let rows = with(&[starts[0], starts[1], (&m2p.sources).into(), (&p2p.sources).into()]);
        // SAFETY: as above; the rows have the lengths that were counted.
        unsafe { device.launch(&functions, "treecode_fill", grid, WARP_THREADS, &rows) }
    })?;
    let [p2m, m2m, l2l, l2p] = finder.own([&m2l, &p2l, &m2p])?;
    Ok(DeviceLists::of([p2m, m2m, m2l, p2l, l2l, l2p, m2p, p2p], device))
}
