//! Points that several callers hold, each on the device of its rank, and the tree of all of them: `kernels/joint.cu`.
//!
//! The boxes of a tree follow from the sorted keys of all points, 8 bytes a point. Each rank sorts its own keys, gets the
//! sorted keys of the others, and merges them. So each rank has all boxes, and knows the places of its own points in tree
//! order, but has no point of another rank.

use crate::builder::{Cloud, KEY_LEVELS, Set, chosen_root};
use crate::device::{Arg, Buffer, ByItem, Device};
use crate::link::Link;
use crate::points::{CallerPoints, Sample};
use crate::primitives::Primitives;
use crate::shares::programs;
use crate::tree::{DevicePoints, DeviceTree};
use fmm_traits::tree::NONE;
use fmm_traits::{Error, Messages};
use fmm_tree::{BuildOptions, BuildReport};
use std::ops::Range;
use std::sync::Arc;

/// Threads per block.
const BLOCK: u32 = 256;
/// Keys of a thread, as in `joint.cu`.
const KEYS_PER_THREAD: usize = 8;
/// Keys of a block.
const TILE: usize = KEYS_PER_THREAD * BLOCK as usize;

/// The points of the callers of all ranks, in the order of ranks. Each rank has the points of its own caller, and knows how
/// many the others have.
#[derive(Clone, Debug)]
pub struct JointPoints {
    own: Arc<CallerPoints>,
    messages: Arc<dyn Messages>,
    name: &'static str,
    counts: Vec<usize>,
    bounds: [[f64; 3]; 2],
}

impl JointPoints {
    /// The points of all ranks, of which `own` are those of this rank. All ranks call it together. `name` appears in errors.
    ///
    /// # Errors
    /// [`Error::TooMany`] beyond 2³² − 2 points, and those of other ranks.
    pub fn new(own: CallerPoints, messages: &Arc<dyn Messages>, name: &'static str) -> Result<Self, Error> {
        let [low, high] = own.bounds();
        let mut bounds = [low, high];
        let mine = [own.len() as u64].into_iter().chain(bounds.as_flattened().iter().map(|x| x.to_bits()));
        let came = messages.give(mine.flat_map(u64::to_ne_bytes).collect())?;
        let mut counts = Vec::new();
        for (rank, message) in came.iter().enumerate() {
            if rank == messages.rank() {
                counts.push(own.len());
                continue;
            }
            let (words, _) = message.as_chunks::<8>();
            let [count, corners @ ..] = words else {
                let why = "numbers of points of other ranks".to_string();
                return Err(Error::Shape { array: name, found: message.len(), expected: 7 * size_of::<u64>(), why });
            };
            counts.push(u64::from_ne_bytes(*count) as usize);
            for (k, corner) in corners.iter().map(|word| f64::from_ne_bytes(*word)).enumerate().take(6) {
                let bound = &mut bounds[k / 3][k % 3];
                *bound = if k < 3 { bound.min(corner) } else { bound.max(corner) };
            }
        }
        let found = counts.iter().sum::<usize>();
        if found >= NONE as usize {
            return Err(Error::TooMany { what: name, found, limit: NONE as usize - 1 });
        }
        Ok(JointPoints { own: Arc::new(own), messages: messages.clone(), name, counts, bounds })
    }

    /// The points of this rank's caller.
    pub fn own(&self) -> &Arc<CallerPoints> {
        &self.own
    }
    /// Numbers of points of the callers of all ranks.
    pub fn counts(&self) -> &[usize] {
        &self.counts
    }
    /// Number of points of all ranks.
    pub fn len(&self) -> usize {
        self.counts.iter().sum()
    }
    /// Whether no rank has points.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The bounding box of all points, as [`CallerPoints::bounds`].
    pub fn bounds(&self) -> [[f64; 3]; 2] {
        self.bounds
    }
    /// The way to the other ranks.
    pub(crate) fn messages(&self) -> &Arc<dyn Messages> {
        &self.messages
    }
    /// The numbers of the points of a rank among those of all.
    pub(crate) fn of_rank(&self, rank: usize) -> Range<usize> {
        let first = self.counts[..rank].iter().sum();
        first..first + self.counts[rank]
    }

    /// A copy of the points of all ranks, in the order of ranks. All ranks call it together.
    ///
    /// # Errors
    /// Errors of the device, and those of other ranks.
    pub fn gathered(&self) -> Result<CallerPoints, Error> {
        let (device, dim) = (self.own.device(), self.own.dim());
        let (rows, _) = self.link()?.gathered(self.own.rows(), self.name)?;
        CallerPoints::of(device, dim, self.name, rows)
    }

    /// Waits for all ranks.
    ///
    /// # Errors
    /// That of a rank that failed.
    pub fn wait(&self) -> Result<(), Error> {
        self.messages.wait()
    }

    fn link(&self) -> Result<Link, Error> {
        Link::new(self.own.device(), self.messages.clone())
    }

    /// The sample of all points from which a root cube is chosen, of which each rank has some.
    fn sample(&self) -> Result<Sample<'_>, Error> {
        let (device, n, what) = (self.own.device(), self.len(), "a sample of the points");
        let (m, ranks) = (fmm_tree::sample_size(n), self.counts.len());
        let mine = self.own.sampled(self.of_rank(self.messages.rank()), n, m)?;
        let (all, _) = self.link()?.gathered(&mine, what)?;
        let kernels = ByItem::new(device, device.fixed("shares", programs::shares)?, BLOCK);
        // Each rank has some points of the sample, and zeros for the others. A bitwise or of the arrays of all ranks has all
        // points. The kernel works on two u32 for each f64.
        let halves = 2 * 3 * m;
        let args =
            [Arg::address(all.address()), (halves as u32).into(), (ranks as u32).into(), Arg::address(mine.address())];
        // SAFETY: arguments as in shares.cu; there are so many halves of each rank.
        unsafe { kernels.threads("join_flags", halves, &args)? };
        Sample::of(device, m, mine)
    }
}

/// The points of this rank's caller in the order of a tree of all points.
#[derive(Debug)]
pub(crate) struct OwnOrder {
    /// The row of each point in the caller's array.
    pub rows: Buffer<u32>,
    /// Its place among all points in tree order. Places ascend.
    pub places: Buffer<u32>,
}

impl OwnOrder {
    /// Number of points.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// The mean of r^(2·`half`) over the targets of all ranks, with `of_sources` over the sources. r is the distance of a point
    /// from the centre of its leaf, in sides of the leaf. All ranks call it together.
    pub fn corners(&self, tree: &DeviceTree, points: &JointPoints, of_sources: bool, half: u32) -> Result<f64, Error> {
        let (device, n) = (&tree.device, self.len());
        let kernels = ByItem::new(device, device.fixed("joint", programs::joint)?, BLOCK);
        let (boxes, grid) = (tree.described()?, n.div_ceil(BLOCK as usize));
        let sums: Buffer<f64> = device.alloc(grid, "sums over leaves")?;
        let own = [points.own.rows().into(), (&self.rows).into(), (&self.places).into(), (n as u64).into()];
        let args =
            [&[Arg::from(&boxes)], &own[..], &[u32::from(of_sources).into(), half.into(), (&sums).into()]].concat();
        // SAFETY: arguments as in joint.cu; the places are those of points of the tree, and there is a sum for each block.
        unsafe { kernels.threads("own_corner_sums", n, &args)? };
        let mine: f64 = device.download_range(&sums, 0..grid, "sums over leaves")?.iter().sum();
        let came = points.messages.give(mine.to_ne_bytes().to_vec())?;
        let others = came.iter().filter_map(|message| message.first_chunk::<8>());
        let all = mine + others.map(|bytes| f64::from_ne_bytes(*bytes)).sum::<f64>();
        Ok(all / points.len().max(1) as f64)
    }

    /// The own points of a tree that has the points of all ranks. `rows` are the own rows among those of all.
    pub fn of_whole(device: &Device, points: &DevicePoints, rows: Range<usize>) -> Result<Self, Error> {
        let n = rows.len();
        let kernels = ByItem::new(device, device.fixed("joint", programs::joint)?, BLOCK);
        let places = points.places(device, rows)?;
        let (mut keys, mut order) = (device.alloc::<u64>(n, "places")?, device.alloc::<u32>(n, "rows of callers")?);
        let narrowed = device.alloc::<u32>(n, "places")?;
        // SAFETY: arguments as in joint.cu; all arrays have n entries.
        unsafe { kernels.threads("widen", n, &[(&places).into(), (n as u64).into(), (&keys).into()])? };
        let bits = u32::BITS - (points.len() as u32).leading_zeros();
        Primitives::new(device)?.sort(&mut keys, &mut order, true, n, 0..bits)?;
        // SAFETY: as above.
        unsafe { kernels.threads("narrow", n, &[(&keys).into(), (n as u64).into(), (&narrowed).into()])? };
        Ok(OwnOrder { rows: order, places: narrowed })
    }
}

/// A tree of the points of all ranks without their coordinates, with the order of the own sources and, if they are separate
/// points, of the own targets.
pub(crate) struct JointTree {
    pub tree: DeviceTree,
    pub report: BuildReport,
    pub own: Vec<OwnOrder>,
}

/// Builds the tree of the points of all ranks, as [`build_reported`](crate::build_reported) builds that of gathered
/// points. `None` if so many points have equal keys that their coordinates are needed. All ranks call it together.
///
/// # Errors
/// As there, and those of other ranks.
pub(crate) fn build_joint(
    device: &Device,
    sources: &JointPoints,
    targets: Option<&JointPoints>,
    options: &BuildOptions,
) -> Result<Option<JointTree>, Error> {
    let more = targets.filter(|t| t.len() >= sources.len()).unwrap_or(sources);
    let arrays: Vec<&JointPoints> = [Some(sources), targets].into_iter().flatten().collect();
    let bounds: Vec<_> = arrays.iter().map(|array| array.bounds).collect();
    let (mut report, mut own) = (BuildReport::default(), Vec::new());
    let root = |low, high| chosen_root(&mut report, more.len(), &mut more.sample()?, [low, high], options);
    let mut cloud = Cloud::new(device, &bounds, options.min_side, root, |builder, corner, side| {
        let mut sets = Vec::new();
        for points in &arrays {
            points.own.is_on(device)?;
            let (keys, rows) = builder.keyed(&points.own, corner, side)?;
            let (keys, places) = merged(points, keys)?;
            own.push(OwnOrder { rows, places });
            sets.push(Set { keys, points: DevicePoints::elsewhere(device, points.len())? });
        }
        Ok(sets)
    })?;
    if cloud.sets.iter().try_fold(false, |any, set| Ok::<_, Error>(any || has_long_run(device, set, report.ncrit)?))? {
        return Ok(None);
    }
    cloud.limit = cloud.limit.min(KEY_LEVELS);
    let (tree, report) = cloud.reported(report, more.len(), options)?;
    Ok(Some(JointTree { tree, report, own }))
}

/// Whether more than `length` keys of a set are equal.
fn has_long_run(device: &Device, set: &Set, length: usize) -> Result<bool, Error> {
    let kernels = ByItem::new(device, device.fixed("joint", programs::joint)?, BLOCK);
    let (n, found) = (set.keys.len(), device.zeros::<u32>(1, "equal keys")?);
    let args = [(&set.keys).into(), (n as u64).into(), (length as u64).into(), (&found).into()];
    // SAFETY: arguments as in joint.cu.
    unsafe { kernels.threads("long_run", n, &args)? };
    Ok(device.download(&found, "equal keys")?[0] != 0)
}

/// The keys of all ranks, sorted, and the places of the `own` keys among them, which are sorted. Of equal keys, those of earlier
/// ranks come first.
fn merged(points: &JointPoints, own: Buffer<u64>) -> Result<(Buffer<u64>, Buffer<u32>), Error> {
    let (device, me, n) = (points.own.device(), points.messages.rank(), own.len());
    let kernels = ByItem::new(device, device.fixed("joint", programs::joint)?, BLOCK);
    let (mut keys, counts) = points.link()?.gathered(&own, "keys")?;
    drop(own);
    let mut starts: Vec<u64> = vec![0];
    counts.iter().for_each(|&count| starts.push(starts[starts.len() - 1] + count as u64));
    let (there, places) = (device.upload(&starts, "keys")?, device.alloc(n, "places")?);
    let ranks = [counts.len(), me].map(|x| Arg::from(x as u32));
    let args = [(&keys).into(), (&there).into(), ranks[0], ranks[1], (&places).into()];
    // SAFETY: arguments as in joint.cu; there is a place for each own key.
    unsafe { kernels.threads("own_places", n.div_ceil(KEYS_PER_THREAD), &args)? };
    if starts.len() > 2 {
        let mut other = device.alloc(keys.len(), "keys")?;
        let splits: Buffer<u64> = device.alloc(keys.len().div_ceil(TILE) + 1, "keys")?;
        while starts.len() > 2 {
            for run in (0..starts.len() - 1).step_by(2) {
                // The last run may have no partner.
                let [first, middle, end] = [0, 1, 2].map(|k| starts[(run + k).min(starts.len() - 1)]);
                let (n, runs) = ((end - first) as usize, [(&keys).into(), first.into(), middle.into(), end.into()]);
                // SAFETY: as above; both arrays have all keys, and there is a split for each tile and for the end.
                unsafe {
                    let args = [&runs[..], &[(&splits).into()]].concat();
                    kernels.threads("merge_splits", n.div_ceil(TILE) + 1, &args)?;
                    let args = [&runs[..], &[(&splits).into(), (&other).into()]].concat();
                    kernels.threads("merge_runs", n.div_ceil(KEYS_PER_THREAD), &args)?;
                }
            }
            std::mem::swap(&mut keys, &mut other);
            let last = starts.len().is_multiple_of(2).then(|| starts[starts.len() - 1]);
            starts = starts.into_iter().step_by(2).chain(last).collect();
        }
    }
    Ok((keys, places))
}
