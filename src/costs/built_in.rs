//! The built-in unit costs of operations, by backend. Every number is a measured time or rate, or a size that balances
//! such times. The one tolerance, [`ROUGH_NEAR_FIELD`], says when a faster instruction is precise enough.
//!
//! CPU costs were measured on one Zen 4 core (AVX-512) by `fmm calibrate` on a quiet machine, GPU costs on one NVIDIA
//! H200 (`docs/notes/gpu-performance.md`).

use super::{Costs, OrderCosts, PlaneCosts};
use fmm_traits::Precision;

/// Fixed time of an evaluation on a CPU, in nanoseconds.
pub(crate) const EVALUATION_NANOSECONDS: f64 = 1e6;
/// Smallest mean points per leaf that the cost model chooses.
#[derive(Clone, Copy)]
pub(crate) struct SmallestLeaf {
    /// For equivalent densities in the plane.
    pub curves: f64,
    /// For interpolation.
    pub volumes: f64,
    /// For all else.
    pub others: f64,
}

/// On a core.
pub(super) const SMALLEST_LEAF: SmallestLeaf = SmallestLeaf { curves: 8.0, volumes: 8.0, others: 8.0 };
/// On a GPU. In space, 32 points is the smallest leaf that was measured with uniform points. With the gradient in f64,
/// harmonics of order 6 are fastest with it (`runs/2026-11-27-h200/leaves.txt`). In the plane a box has 9 neighbours and
/// little work of its own, and smaller leaves pay: at 2²² points in f64, leaves of 12, 18, 26 and 54 points took 35, 45, 65
/// and 118 ms for K₀, and 11.1, 10.8, 12.6 and 19.1 ms for ln r (`runs/2026-11-24-h200/quadtree-leaves.txt`). There
/// interpolation in f64 gains a tenth by small leaves. But in f32 the floor of interpolation rises in small boxes: with leaves
/// of 32 points, a Gaussian in the plane with its gradient was refused 5e-3 (`runs/2026-11-27-h200/gaussian-floor.txt`). So
/// interpolation keeps 60 points everywhere.
pub(super) const SMALLEST_DEVICE_LEAF: SmallestLeaf = SmallestLeaf { curves: 12.0, volumes: 60.0, others: 32.0 };

/// Costs of the Laplace potential and gradient in f64. For equivalent densities of order 6, 8 and 10, eq. 28 gives 57,
/// 93 and 133 points per leaf from these costs. A sweep over leaf sizes at a million points found 57, 80 and 110.
pub(super) fn costs() -> Costs {
    Costs {
        device: None,
        kernel: "laplace".to_string(),
        precision: "f64".to_string(),
        outputs: vec!["potential".to_string(), "gradient".to_string()],
        pair: 0.68,
        leaves: 60.0,
        direct: 0.68,
        evaluation: EVALUATION_NANOSECONDS,
        equivalent: orders(&EQUIVALENT_COSTS),
        spherical: orders(&SPHERICAL_COSTS),
    }
}

/// Rows of a table of costs.
fn orders(rows: &[[f64; 4]]) -> Vec<OrderCosts> {
    rows.iter().map(|&[p, point, leaf, m2l]| OrderCosts { order: p as usize, point, leaf, m2l }).collect()
}

/// Rows of order, then nanoseconds per point, per leaf and per M2L translation, for equivalent densities.
const EQUIVALENT_COSTS: [[f64; 4]; 4] = [
    [4.0, 72.4, 1655.0, 66.2],
    [6.0, 183.8, 3618.0, 289.6],
    [8.0, 342.3, 7963.0, 781.6],
    [10.0, 572.3, 14836.0, 1623.7],
];
/// As [`EQUIVALENT_COSTS`], for spherical harmonics.
const SPHERICAL_COSTS: [[f64; 4]; 5] = [
    [4.0, 16.9, 832.0, 23.2],
    [8.0, 41.5, 1820.0, 88.8],
    [12.0, 86.1, 3486.0, 198.4],
    [16.0, 148.4, 6997.0, 388.3],
    [24.0, 385.5, 14558.0, 1261.2],
];

/// The work of operations of a pair loop, in units of a multiplication.
#[derive(Clone, Copy)]
pub(super) struct Operations {
    /// Sums, products, comparisons.
    pub simple: f64,
    pub division: f64,
    pub root: f64,
    pub reciprocal_root: f64,
    pub exponential: f64,
    pub logarithm: f64,
    pub sine: f64,
    pub error_function: f64,
    pub bessel: f64,
}

impl Operations {
    /// The work of a pair in the kernel of the built-in costs: the Laplace potential, and with its gradient (as counted
    /// by `pair::work`, compiled).
    pub fn laplace(&self) -> [f64; 2] {
        [8.0 + self.reciprocal_root, 16.0 + self.reciprocal_root]
    }
}

/// On AVX-512, fitted to the rates of pairs in `runs/2026-11-23-zen4x2/pair-rates.txt`, and to direct sums of one
/// function each (`function-rates.txt` there).
pub(super) const OPERATIONS: Operations = Operations {
    simple: 1.0,
    division: 8.0,
    root: 10.0,
    reciprocal_root: 6.0,
    exponential: 30.0,
    logarithm: 35.0,
    sine: 37.0,
    error_function: 80.0,
    bessel: 100.0,
};
/// As [`OPERATIONS`], in the interpreter of kernels made at run time. It loads and stores the results of simple
/// operations. Fitted to the same rates.
pub(super) const INTERPRETED: Operations = Operations { simple: 4.0, ..OPERATIONS };

/// As [`OPERATIONS`], in P2P of kernels printed for a GPU. Fitted to seven functions, each in pairs of leaves of two
/// sizes (`runs/2026-11-25-h200/functions.txt`). A function costs more than in a direct sum, because P2P has several
/// loops over pairs, which must fit into the instruction cache.
pub(super) fn device_operations(precision: Precision) -> &'static Operations {
    match precision {
        Precision::F64 => &IN_P2P_F64,
        Precision::F32 => &IN_P2P_F32,
    }
}
const IN_P2P_F64: Operations = Operations {
    simple: 1.0,
    division: 13.0,
    root: 24.0,
    reciprocal_root: 11.5,
    exponential: 69.0,
    logarithm: 113.0,
    sine: 62.0,
    error_function: 199.0,
    bessel: 737.0,
};
const IN_P2P_F32: Operations = Operations {
    simple: 1.0,
    division: 13.0,
    root: 22.0,
    reciprocal_root: 10.6,
    exponential: 18.0,
    logarithm: 49.0,
    sine: 97.0,
    error_function: 55.0,
    bessel: 305.0,
};
/// As [`OPERATIONS`], in direct sums of kernels printed for a GPU, which are in f64. Fitted as above.
pub(super) const IN_DIRECT_SUMS: Operations = Operations {
    simple: 1.0,
    division: 12.5,
    root: 22.0,
    reciprocal_root: 13.1,
    exponential: 50.0,
    logarithm: 85.0,
    sine: 49.0,
    error_function: 125.0,
    bessel: 400.0,
};

/// On a GPU, the share of M2L by harmonics in a full cube that grows with the number of boxes; the rest grows with the number of
/// edges. A tile of boxes is translated along one operator after the other, also for boxes that have no edge along that operator.
/// Example: with 2²⁴ points a box has 175 edges in a cube and 35 on an ellipsoid, but the boxes of a tile together use most
/// operators there, too. Fits to these two clouds at orders 6, 9 and 16 give 0.32, 0.37 and 0.24
/// (`runs/2026-11-28-h200/stages-with-sorted-families.txt`). This is about their mean.
pub(super) const IDLE_IN_TILES: f64 = 0.3;
/// As [`IDLE_IN_TILES`], for lattices. Their spectra are multiplied for whole families (the 2ᵈ children of a box). A child that
/// is not there is a spectrum of zeros, which takes as long.
pub(super) const IDLE_IN_FAMILIES: f64 = 0.65;
/// What it takes to make the operators of one far field of order p on one level.
#[derive(Clone, Copy)]
pub(crate) enum OperatorCosts {
    /// Time of densities on surfaces and in volumes: the number times p⁵ times the time of one pair of points. Operators of
    /// harmonics take no time.
    Pairs { surface: f64, volume: f64 },
    /// Nanoseconds for each of p⁴ entries of a matrix between harmonics; and for each pair of points of a lattice and each pair
    /// of components of the kernel. A treecode by harmonics has no such operators.
    Nanoseconds { harmonics: f64, densities: f64 },
}

/// Measured for 1/r, a Gaussian and waves at orders 6 to 14 on a core of Zen 4, within a factor 2.
pub(super) const OPERATORS_ON_CORES: OperatorCosts = OperatorCosts::Pairs { surface: 700.0, volume: 2000.0 };
/// Fitted to times for 1/r on one NVIDIA H200 with operators of densities on disk
/// (`runs/2026-11-28-h200/operators-by-order.txt`). Dense matrices of harmonics at orders 13 to 23 take as long within a factor 1.1,
/// equivalent densities of orders 7 to 12 within 1.5, densities in volumes of orders 8 to 12 within 1.8. Rotations take half of it.
/// The price leaves out 3 ms for each order, most of which load programs.
pub(super) const OPERATORS_ON_A_DEVICE: OperatorCosts =
    OperatorCosts::Nanoseconds { harmonics: 290.0, densities: 45.0 };

/// Mean points per leaf of a treecode by densities. An M2P group on a GPU has as many targets.
pub(super) const TREECODE_LEAF: f64 = 64.0;
/// Time of one harmonic in M2P or P2L, in units of the time of a pair of points.
pub(super) const PAIRS_PER_HARMONIC: f64 = 0.4;
/// What is known of treecodes by spherical harmonics.
#[derive(Clone, Copy)]
pub(crate) struct HarmonicTreecode {
    /// Mean points per leaf.
    pub leaf: f64,
    /// As [`PAIRS_PER_HARMONIC`], in M2P of a treecode with variable truncation.
    pub pairs_per_harmonic: f64,
}
/// On a core. A million uniform points (θ = 0.9, p = 6) took 1.38, 1.18 and 1.12 s with 57, 37 and 27 points per leaf.
/// Smaller leaves make longer lists. Far edges take fewer harmonics than the order has: 0.13 to 0.29 pairs for each that the
/// order has, for orders 7 to 4.
pub(super) const TREECODE_ON_CORES: HarmonicTreecode = HarmonicTreecode { leaf: 36.0, pairs_per_harmonic: 0.17 };
/// On a GPU, where every edge takes all harmonics: 0.43 to 0.5 pairs each in f32, 0.31 to 0.39 in f64, for orders 5 to 12
/// (`runs/2026-11-28-h200/treecodes.csv`).
pub(super) const TREECODE_ON_A_DEVICE: HarmonicTreecode =
    HarmonicTreecode { leaf: TREECODE_LEAF, pairs_per_harmonic: 0.42 };

/// Default θ in the plane. A smaller θ means more edges, a larger θ more terms. At a million uniform points and a
/// tolerance of 1e-12, θ = 0.5 and 0.6 took 1.02 and 1.18 times as long as 0.55 (harmonic, one Zen 4 core).
pub(crate) const PLANE_THETA: f64 = 0.55;
/// Smallest tolerance for which reciprocals of 28 bits suffice in the near field of the plane.
pub(crate) const ROUGH_NEAR_FIELD: f64 = 1e-7;
/// Desired population of a leaf of the pyramid. Actual populations are 0.4 to 1.6 times this number, because a level of
/// the pyramid divides populations by four.
pub(super) fn plane_population(order: usize) -> f64 {
    if order <= 24 { 45.0 } else { 60.0 }
}
/// Costs in the plane on one core. 600 points took 0.23 ms directly and 0.17 ms by Laurent series (harmonic, p = 20).
pub(super) const PLANE_ON_CORES: PlaneCosts = PlaneCosts { pair: 0.6, point: [10.0, 80.0], evaluation: 2e4 };
/// Costs in the plane on a GPU, from one NVIDIA H200 (docs/notes/gpu-performance.md): 1e12 pairs per second, and 2.4 ms for
/// 2 949 120 points (harmonic, p = 20).
pub(super) const PLANE_ON_A_DEVICE: PlaneCosts = PlaneCosts { pair: 1e-3, point: [0.012, 0.56], evaluation: 2e5 };

/// Costs of the Laplace potential and gradient on a GPU, in f64 and in f32: what `fmm calibrate --backend cuda` measured
/// on one NVIDIA H200 (`costs-f64.json` and `costs-f32.json` of `runs/2026-11-27-h200`). Direct sums are in f64 for either
/// precision.
pub(super) fn device_costs(precision: Precision) -> Costs {
    let table = match precision {
        Precision::F64 => &DEVICE_F64,
        Precision::F32 => &DEVICE_F32,
    };
    let [pair, leaves, direct, evaluation] = table.fixed;
    let outputs = vec!["potential".to_string(), "gradient".to_string()];
    let (kernel, precision) = ("laplace".to_string(), precision.name().to_string());
    let (equivalent, spherical) = (orders(table.equivalent), orders(table.spherical));
    Costs { device: None, kernel, precision, outputs, pair, leaves, direct, evaluation, equivalent, spherical }
}

/// Measured costs on a GPU, in nanoseconds.
struct DeviceTable {
    /// A pair of P2P, a pair of leaves, a pair of a direct sum, an evaluation of few points.
    fixed: [f64; 4],
    /// As [`EQUIVALENT_COSTS`].
    equivalent: &'static [[f64; 4]],
    /// As [`EQUIVALENT_COSTS`], for spherical harmonics.
    spherical: &'static [[f64; 4]],
}
const DEVICE_F64: DeviceTable = DeviceTable {
    fixed: [0.00147, 0.468, 0.0013, 342000.0],
    equivalent: &[
        [4.0, 0.187, 12.4, 0.0835],
        [6.0, 0.369, 26.4, 0.303],
        [8.0, 0.68, 56.3, 0.71],
        [10.0, 1.07, 113.0, 1.57],
    ],
    spherical: &[
        [4.0, 0.0741, 4.79, 0.0817],
        [8.0, 0.138, 7.68, 0.264],
        [12.0, 0.32, 20.2, 1.07],
        [13.0, 0.37, 18.5, 1.9],
        [16.0, 0.546, 26.2, 3.63],
        [24.0, 1.41, 90.8, 21.0],
    ],
};
const DEVICE_F32: DeviceTable = DeviceTable {
    fixed: [0.000665, 0.313, 0.00128, 328000.0],
    equivalent: &[
        [4.0, 0.106, 12.3, 0.0592],
        [6.0, 0.185, 24.7, 0.224],
        [8.0, 0.31, 49.6, 0.541],
        [10.0, 0.503, 88.0, 1.15],
    ],
    spherical: &[
        [4.0, 0.0672, 4.72, 0.0579],
        [8.0, 0.105, 7.43, 0.161],
        [12.0, 0.231, 14.0, 0.531],
        [13.0, 0.261, 16.5, 1.96],
        [16.0, 0.363, 22.8, 3.66],
        [24.0, 0.81, 56.5, 11.1],
    ],
};
