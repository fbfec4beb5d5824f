//! How near the nearest pairs of points are: `kernels/closeness.cu`.

use crate::device::{Buffer, blocks};
use crate::programs;
use crate::tree::{BLOCK, DeviceTree};
use fmm_traits::Error;
use fmm_tree::closeness::{MOST, Seen, of, sample};

/// [`fmm_tree::closeness()`] of a tree on the device, to rounding.
///
/// # Errors
/// Those of the device.
pub fn closeness(tree: &DeviceTree) -> Result<f64, Error> {
    let (device, points) = (&tree.device, &tree.sources);
    let chosen: Vec<u32> = sample(points.len()).map(|i| i as u32).collect();
    let count = chosen.len();
    let boxes = device.upload(&tree.boxes.addresses(), "addresses of boxes")?;
    let sources = device.upload(&chosen, "a sample")?;
    let pairs: Buffer<f64> = device.alloc(count, "a sample")?;
    let leaves: Buffer<u32> = device.alloc(2 * count, "a sample")?;
    let args = [
        (&boxes).into(),
        (&sources).into(),
        (count as u32).into(),
        (&points.xyz).into(),
        (points.len() as u64).into(),
        tree.side.into(),
        (MOST as u32).into(),
        (&pairs).into(),
        (&leaves).into(),
    ];
    // SAFETY: arguments as in closeness.cu; the sample is of the sources, and there is an entry for each.
    unsafe {
        let functions = device.fixed("closeness", programs::closeness)?;
        device.launch(&functions, "closeness", (blocks(32 * count, BLOCK as usize)?, 1), BLOCK, &args)?;
    }
    let pairs = device.download(&pairs, "a sample")?;
    let leaves = device.download(&leaves, "a sample")?;
    let seen = |(pairs, leaf): (f64, &[u32; 2])| Seen { level: leaf[0] as usize, count: leaf[1] as usize, pairs };
    Ok(of(pairs.into_iter().zip(leaves.as_chunks::<2>().0).map(seen)))
}
