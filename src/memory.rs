//! Forecast of the memory of a plan and one evaluation, from counts alone.

use crate::parts::Parts;
use crate::variant::Expansion;
use backend_cuda::Translation;
use fmm_dist::coarse::LEAVES_PER_RANK;
use fmm_families::Facts;
use fmm_kernels::spherical::horner;
use fmm_traits::{Outputs, Policy, Precision};

/// The counts that determine the memory of a plan.
pub(crate) struct Size {
    /// Numbers of sources and targets.
    pub counts: [usize; 2],
    /// Whether the targets are separate points, not sources.
    pub apart: bool,
    /// `None` for direct summation.
    pub order: Option<usize>,
    /// Mean points per leaf; in the plane the desired population.
    pub leaf: f64,
    /// Precision of the far field.
    pub precision: Precision,
}

/// Leaves beside the share of a rank, on each side of it, whose points or multipoles the rank holds. Points are those
/// of the nearest leaf, multipoles those of the three nearest, and of boxes above.
const GHOST_LEAVES: f64 = 2.0;

/// The numbers of sources and targets that one of several ranks holds of points that fill a cube: its share, and those
/// of ghosts, in leaves of `leaf` points. Without leaves (direct sums), each rank holds all sources.
pub(crate) fn of_a_rank([n, m]: [usize; 2], ranks: usize, leaf: Option<f64>) -> [usize; 2] {
    let share = |count: usize| count.div_ceil(ranks);
    let Some(leaf) = leaf else { return [n, share(m)] };
    let side = (share(n) as f64 / leaf).cbrt() + 2.0 * GHOST_LEAVES;
    // The boxes of the coarse tree, which every rank holds, count as further leaves.
    let leaves = side.powi(3) + (LEAVES_PER_RANK * ranks) as f64;
    [n.min((leaves * leaf) as usize), share(m)]
}

/// Bytes of the sorted keys of the points of all ranks, which each GPU merges before there is anything else.
pub(crate) fn keys_of_all([n, m]: [usize; 2], apart: bool) -> u64 {
    16 * (if apart { n + m } else { n }) as u64
}

/// Bytes of a plan and one evaluation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Forecast {
    /// All bytes, with all targets at once.
    pub bytes: u64,
    /// Bytes without which there is no plan, whatever the tree and the number of pieces.
    pub least: u64,
}

/// A forecast that decides.
impl From<u64> for Forecast {
    fn from(bytes: u64) -> Self {
        Forecast { bytes, least: bytes }
    }
}

/// Numbers per source in the arrays of attributes, and of strengths with attributes.
fn joined(facts: &Facts) -> usize {
    if facts.attributes == 0 { 0 } else { facts.attributes + facts.strengths }
}

/// Bytes of a plan and one evaluation on `threads` threads of a CPU. The tree is as deep as a tree of uniform points.
pub(crate) fn on_cores(facts: &Facts, size: &Size, threads: usize, parts: &Parts) -> u64 {
    let Size { counts: [n, m], .. } = *size;
    let arrays =
        48 * (n + m) + 8 * (n * (facts.strengths + joined(facts) + of_fields(facts, parts)) + 3 * m * facts.values);
    arrays as u64 + fields_on_cores(facts, size, threads, parts)
}

/// Strengths of a source in several far fields, each of which has its own.
fn of_fields(facts: &Facts, parts: &Parts) -> usize {
    if parts.fields() > 1 { parts.fields() * facts.strengths } else { 0 }
}

/// Bytes that M2L of `boxes` boxes takes on a GPU for the sums of its parts (`parts_of_offsets` in
/// `backend-cuda/src/products.rs`). Each part has `row` bytes for each box.
///
/// There are up to 32 parts as long as all run at once. What a block translates lies in shared memory, of which one NVIDIA H200
/// has 30 MB, so that the rows of blocks that run at once are at most as large. More boxes have at most eight parts in four waves, of
/// which the last may have one part too many. If the boxes fill six waves (four, and a margin for forecasts of too many boxes), there
/// is one part, which needs no sums of its own.
fn bytes_of_m2l_parts(boxes: usize, row: usize) -> usize {
    const SHARED_MEMORY: usize = 30_000_000;
    let once = boxes * row;
    if once > 6 * SHARED_MEMORY {
        0
    } else {
        (32 * once).min((8 * once).clamp(SHARED_MEMORY, 4 * SHARED_MEMORY + once))
    }
}

/// Boxes of a tree. Adaptive trees have up to a third more than those of uniform points.
fn boxes_of(leaves: f64) -> usize {
    (1.5 * leaves) as usize + 8
}

/// [`on_cores`] without the arrays of points, strengths and sums: boxes, lists, expansions, operators.
fn fields_on_cores(facts: &Facts, size: &Size, threads: usize, parts: &Parts) -> u64 {
    let (&Size { counts: [n, m], order, leaf: mean, .. }, wide) = (size, size.precision.bytes());
    let Some(p) = order else { return 0 };
    let leaves = n.max(m) as f64 / mean;
    let boxes = boxes_of(leaves);
    let treecode = parts.policy.theta().is_some();
    let Some(lattice) = parts.lattice(p) else {
        // Edges are held twice: as lists and arranged by course. Tables are courses with their phases. Scratch memory
        // of a thread: lanes of 16 boxes, and the locals of a family.
        let lists = boxes * (8 * 12 + if treecode { 12 * 240 } else { 4 * (189 + 40) } + 170);
        let tables = 340 * 2 * p * (p + 1) + 60 * p.pow(3);
        // A treecode also holds its multipoles with their derivatives, or as polynomials.
        let polynomial = if p <= horner::MAX_ORDER { horner::len(p) } else { 0 };
        let derivatives = if facts.components(Outputs::HESSIAN) > 0 { 2 } else { 1 };
        let fields = if treecode { boxes * polynomial.max((p + derivatives).pow(2) * facts.values) } else { 0 };
        let rows = if treecode { 1 } else { 3 };
        return (lists + wide * (rows * boxes * p * p + fields + tables + threads * 16 * 11 * p * p)) as u64;
    };
    let families = boxes / 7 + 1;
    let [densities, checks] = facts.densities_and_checks(lattice.fill);
    let (row, points) = (densities.max(checks), lattice.len());
    let frequencies = (2 * p - 1).pow(parts.dim as u32 - 1) * p;
    let lists = boxes * (8 * 12 + 4 * (189 + 40));
    let spectra = if treecode { 0 } else { families * row * 16 * frequencies };
    let locals = if treecode { 0 } else { row * points + 4 * checks };
    let rows = parts.fields() * boxes * (densities * points + locals) + spectra;
    // Per level: M2M, L2L and the factors of the solves, in eight blocks; and 316 M2L operators.
    let m2l = if treecode { 0 } else { 317 * 2 * frequencies * densities * checks };
    let level = 5 * densities * checks * points.pow(2) / 2 + m2l;
    let levels = parts.fields() * levels(facts, leaves);
    let scratch = 6 * 128 * row * points + 24 * families * densities;
    (lists + wide * (rows + levels * level + threads * scratch)) as u64
}

/// Levels that have operators of their own.
fn levels(facts: &Facts, leaves: f64) -> usize {
    if facts.homogeneous { 1 } else { (leaves.max(1.0).log2() / 3.0).ceil() as usize + 2 }
}

/// Bytes of a plan and one evaluation on a GPU, on arrays in the precision of the plan. Where the bytes are is written
/// down in docs/notes/gpu-memory.md.
pub(crate) fn on_a_device(facts: &Facts, size: &Size, parts: &Parts) -> Forecast {
    let (&Size { counts: [n, m], order, leaf: mean, .. }, wide) = (size, size.precision.bytes());
    let points = if size.apart { n + m } else { n };
    // The arrays of the caller, which are on the device during an evaluation.
    let given = wide * (n * facts.strengths + m * facts.values);
    // Points with their order and places; strengths in tree order. A tree of points takes, before there is anything
    // else, the caller's points, keys, and room to sort them.
    let arrays = given + 28 * points + 4 * m + 8 * n * (facts.strengths + joined(facts) + of_fields(facts, parts));
    let planning = 68 * points;
    let sums = (8 * m * facts.values) as u64;
    // A GPU plan holds the lists of a CPU plan, the neighbours of all boxes, and its M2L edges as a table. If the spectra
    // would fill the memory, they are made in parts.
    let boxes = boxes_of(n.max(m) as f64 / mean);
    // Per box 100 edges, and three tasks (of P2P, L2P and M2P) of four numbers each.
    let edges = if order.is_some() { boxes * 4 * (100 + 12) } else { 0 };
    // Translations to parents, on which rotations depend as on those to boxes.
    let parents = if parts.policy == Policy::Stencil119 { 80 } else { 0 };
    let whole = wide
        * match order.map(|p| (parts.lattice(p), p)) {
            // For each level: eight whole matrices each of M2M and L2L, and two solves.
            Some((Some(lattice), _)) => {
                let components = facts.densities_and_checks(lattice.fill).iter().product::<usize>();
                levels(facts, n.max(m) as f64 / mean) * 18 * components * lattice.len().pow(2)
            }
            // Dense matrices of M2M, L2L and 316 of M2L; or the factors of each, with some forty rotations there and
            // back.
            Some((None, p)) => match parts.translation_on_device(p, size.precision) {
                Translation::Dense => (332 + parents) * (p * p).next_multiple_of(2).pow(2),
                Translation::Rcr => 2 * (332 + parents) * p * (p + 1) + 64 * p.pow(3),
                // Some 2300 translations to domains, and at most 18 locals of domains in each family.
                Translation::Domains => 4600 * p * (p + 1) + 64 * p.pow(3) + 18 * (boxes / 7 + 1) * p * p,
            },
            None => 0,
        };
    // Check values of a treecode, and the intermediate vectors between the factors of its solves.
    let solves = match (parts.policy.theta(), order.and_then(|p| parts.lattice(p))) {
        (Some(_), Some(lattice)) => {
            let [densities, checks] = facts.densities_and_checks(lattice.fill);
            2 * boxes * checks.max(densities) * lattice.len()
        }
        _ => 0,
    };
    // For each end of M2L edges, 216 numbers of four bytes: a parent is one more end of a family, domains are at most
    // 18 more, with edges down to their children.
    let ends = match (parts.expansion, order.map(|p| parts.translation_on_device(p, size.precision))) {
        (Expansion::Spherical, Some(Translation::Domains)) => 18 * 864 + 48 * 8,
        _ if parts.policy == Policy::Stencil119 => 864,
        _ => 0,
    };
    let sums_of_parts = match (parts.expansion, parts.policy.theta(), order) {
        (Expansion::Spherical, None, Some(p)) => bytes_of_m2l_parts(boxes, wide * (p * p).next_multiple_of(2)),
        _ => 0,
    };
    let shared = edges + ends * (boxes / 7 + 1) + arrays;
    let placed = fields_on_cores(facts, size, 0, parts)
        + (parts.fields() * (whole + wide * solves + sums_of_parts) + shared) as u64;
    // How many boxes there are depends on the points. Where the forecast is too high, a plan must not be refused for it:
    // the device refuses each array that does not fit, with numbers. Direct sums take all targets at once.
    let least = (arrays.max(planning) as u64) + if order.is_some() { 0 } else { sums };
    Forecast { bytes: (placed + sums).max(least), least }
}

/// Bytes of a plan and one evaluation in the plane: points, strengths and sums in tree order, multipoles of the boxes,
/// and about 60 edges per box. `size.leaf` is the desired population.
pub(crate) fn in_the_plane(facts: &Facts, size: &Size) -> u64 {
    let &Size { counts: [n, m], order, leaf: population, .. } = size;
    let arrays = 20 * (n + m) + 8 * n * facts.strengths + 16 * m * facts.values;
    let Some(p) = order else { return arrays as u64 };
    let boxes = 4.0 / 3.0 * 2.5 * n.max(m) as f64 / population + 1.0;
    (arrays as f64 + boxes * (16.0 * (p + 1) as f64 + 24.0 + 8.0 * 8.0 + 4.0 * 60.0)) as u64
}
