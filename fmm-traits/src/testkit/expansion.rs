//! Properties of an expansion, for its author: one call, [`check_expansion`].
//!
//! Every operator is tested alone, then in chains of growing length (after sumpy's `test_kernels.py`), off the origin,
//! against the pair-by-pair sum. The error must fall at a stated rate with the order, and no order may be worse than
//! the order before. The last checks are linearity, translation covariance and, for homogeneous kernels, scale
//! covariance.

use super::clouds::Generator;
use crate::{Cloud, Cube, Error, Expansion, Real};

/// Sides of all boxes of [`check_expansion`]: a leaf, its parent and its grandparent, and half of each for scale
/// covariance. An expansion with one set of operators per level must be built for these sides.
pub const SIDES: [f64; 4] = [4.0, 2.0, 1.0, 0.5];

/// Lower corner of the tree of the boxes, so that nothing is symmetric about the origin.
const CORNER: [f64; 3] = [0.5, -3.25, 7.0];

/// The stated accuracy of an expansion.
#[derive(Clone, Debug)]
pub struct Expected {
    /// The orders to test, ascending.
    pub orders: Vec<usize>,
    /// The relative ℓ2 error of order p must stay below `first·rate^−(p − orders[0])`.
    pub rate: f64,
    /// Largest error of the first order; see `rate`.
    pub first: f64,
    /// Level of rounding errors. Once an error is below it, the errors of all higher orders must be.
    pub floor: f64,
    /// Whether scale covariance holds with powers of two.
    pub homogeneous: bool,
}

/// A chain of operators from sources to targets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chain {
    /// P2M → M2P.
    Multipole,
    /// P2M → M2M → M2P.
    Parent,
    /// P2M → M2M → M2M → M2P.
    Grandparent,
    /// P2L → L2P.
    Local,
    /// P2M → M2L → L2P.
    Across,
    /// P2M → M2M → M2L → L2L → L2P.
    Whole,
}

impl Chain {
    /// All chains, shortest first.
    pub const ALL: [Chain; 6] =
        [Chain::Multipole, Chain::Parent, Chain::Grandparent, Chain::Local, Chain::Across, Chain::Whole];

    /// Anchor of the target leaf, in leaf sides: as near as the chain allows. The source leaf is at (1, 0, 1), its
    /// parent at 0..2, its grandparent at 0..4.
    fn target(self) -> [f64; 3] {
        match self {
            Chain::Multipole | Chain::Local | Chain::Across => [3.0, 1.0, 1.0],
            Chain::Parent => [4.0, 1.0, 0.0],
            Chain::Grandparent => [8.0, 1.0, 2.0],
            Chain::Whole => [4.0, 1.0, -1.0],
        }
    }
}

/// Sources, targets and boxes of one chain.
struct Scene<T> {
    side: f64,
    corner: [f64; 3],
    sources: Vec<[f64; 3]>,
    targets: Vec<[f64; 3]>,
    strengths: Vec<T>,
    target: [f64; 3],
}

impl<T: Real> Scene<T> {
    /// `points` sources and targets in leaves of side `side`; the same `seed` gives the same
    /// scene up to dilation about, and shift of, `corner`.
    fn new(chain: Chain, side: f64, corner: [f64; 3], strengths_per_source: usize, seed: u64) -> Self {
        let mut random = Generator::new(seed);
        let points = 30;
        let mut leaf = |anchor: [f64; 3]| -> Vec<[f64; 3]> {
            // Multiples of 2^-12, so that shifts and dilations are exact.
            let mut at = |a: usize| corner[a] + side * (anchor[a] + (random.uniform() * 4096.0).floor() / 4096.0);
            (0..points).map(|_| std::array::from_fn(&mut at)).collect()
        };
        let (sources, targets) = (leaf([1.0, 0.0, 1.0]), leaf(chain.target()));
        let strengths = (0..points * strengths_per_source).map(|_| T::of(2.0 * random.uniform() - 1.0)).collect();
        Scene { side, corner, sources, targets, strengths, target: chain.target() }
    }

    /// The ancestor, `levels` up, of the leaf with this anchor.
    fn cube(&self, anchor: [f64; 3], levels: i32) -> Cube {
        let ratio = 2f64.powi(levels);
        let center = |a: usize| self.corner[a] + self.side * ratio * ((anchor[a] / ratio).floor() + 0.5);
        Cube { center: std::array::from_fn(center), side: self.side * ratio }
    }

    /// Values at the targets, computed by the chain.
    fn run<X: Expansion<T>>(&self, x: &X, chain: Chain) -> Vec<T> {
        let zero = T::of(0.0);
        let source = |levels| self.cube([1.0, 0.0, 1.0], levels);
        let target = |levels| self.cube(self.target, levels);
        let cloud = Cloud { xyz: &self.sources, strengths: &self.strengths };
        let mut values = vec![zero; self.targets.len() * x.values()];
        let multipole = |levels: i32| {
            let mut row = vec![zero; x.multipole_len()];
            x.p2m(source(0), cloud, &mut row);
            x.finish_multipole(source(0), &mut row);
            for level in 1..=levels {
                let mut parent = vec![zero; x.multipole_len()];
                x.m2m(source(level), source(level - 1), &row, &mut parent);
                x.finish_multipole(source(level), &mut parent);
                row = parent;
            }
            row
        };
        let across = |levels: i32| {
            let mut row = vec![zero; x.local_len()];
            x.m2l(target(levels), source(levels), &multipole(levels), &mut row);
            x.finish_local(target(levels), &mut row);
            row
        };
        let local = match chain {
            Chain::Multipole | Chain::Parent | Chain::Grandparent => {
                let up = match chain {
                    Chain::Multipole => 0,
                    Chain::Parent => 1,
                    _ => 2,
                };
                assert!(x.admissible(target(0), source(up)), "{chain:?}: the boxes of this chain must be admissible");
                x.m2p(source(up), &multipole(up), &self.targets, &mut values);
                return values;
            }
            Chain::Local => {
                let mut row = vec![zero; x.local_len()];
                x.p2l(target(0), source(0), cloud, &mut row);
                x.finish_local(target(0), &mut row);
                row
            }
            Chain::Across => across(0),
            Chain::Whole => {
                let parent = across(1);
                let mut row = vec![zero; x.local_len()];
                x.l2l(target(0), target(1), &parent, &mut row);
                x.finish_local(target(0), &mut row);
                row
            }
        };
        x.l2p(target(0), &local, &self.targets, &mut values);
        values
    }

    /// Values at the targets, computed pair by pair.
    fn direct<X: Expansion<T>>(&self, x: &X) -> Vec<T> {
        let mut values = vec![T::of(0.0); self.targets.len() * x.values()];
        x.p2p(Cloud { xyz: &self.sources, strengths: &self.strengths }, &self.targets, false, &mut values);
        values
    }
}

/// The largest relative ℓ2 difference over the value components. A small pressure cannot hide behind a large velocity.
/// A component that is zero everywhere must be zero in both arrays.
pub fn difference<T: Real>(found: &[T], expected: &[T], components: usize) -> f64 {
    let worst = (0..components).map(|i| {
        let (mut d2, mut e2) = (0.0f64, 0.0f64);
        for (a, b) in found.iter().skip(i).step_by(components).zip(expected.iter().skip(i).step_by(components)) {
            d2 += (a.f64() - b.f64()).powi(2);
            e2 += b.f64().powi(2);
        }
        if d2 == 0.0 { 0.0 } else { (d2 / e2).sqrt() }
    });
    worst.fold(0.0, |m: f64, e| if e.is_nan() { f64::INFINITY } else { m.max(e) })
}

/// The relative error of `chain`, for the worst value component and the worst of three sets of points.
pub fn chain_error<T: Real, X: Expansion<T>>(x: &X, chain: Chain) -> f64 {
    let error = |seed| {
        let scene = Scene::<T>::new(chain, 1.0, CORNER, x.strengths(), seed);
        difference(&scene.run(x, chain), &scene.direct(x), x.values())
    };
    (1..=3).map(error).fold(0.0, f64::max)
}

/// Checks all properties; `make(p)` is the expansion of order p, built for boxes of [`SIDES`]. If a property fails,
/// panics with the name, the chain and the errors of all orders.
pub fn check_expansion<T: Real, X: Expansion<T>>(
    name: &str,
    make: impl Fn(usize) -> Result<X, Error>,
    expected: &Expected,
) {
    let made = |p: usize| make(p).unwrap_or_else(|e| panic!("{name}: order {p}: {e}"));
    let expansions: Vec<X> = expected.orders.iter().map(|&p| made(p)).collect();
    for chain in Chain::ALL {
        let errors: Vec<f64> = expansions.iter().map(|x| chain_error(x, chain)).collect();
        check_rate(&format!("{name} ({}), {chain:?}", T::NAME), &errors, expected);
    }
    if let Some(x) = expansions.first() {
        for chain in Chain::ALL {
            check_linear(name, x, chain);
            check_translation(name, x, chain);
            if expected.homogeneous {
                check_scale(name, x, chain);
            }
        }
    }
}

/// Checks that the errors of `expected.orders` fall at the stated rate.
fn check_rate(what: &str, errors: &[f64], expected: &Expected) {
    let Expected { orders, rate, first, floor, .. } = expected;
    let shown = errors.iter().map(|e| format!("{e:.1e}")).collect::<Vec<_>>().join(" ");
    let fail = |why: String| panic!("{what}: {why}; orders {orders:?} have errors {shown}");
    for (k, &error) in errors.iter().enumerate().filter(|(_, e)| **e > *floor) {
        let allowed = first * rate.powi(-((orders[k] - orders[0]) as i32));
        if error > allowed {
            fail(format!("order {} should be below {allowed:.1e}", orders[k]));
        }
        if k > 0 && error > errors[k - 1].max(*floor) {
            fail(format!("order {} is worse than order {}", orders[k], orders[k - 1]));
        }
    }
}

/// Largest difference between two results that should agree to rounding.
fn rounding<T: Real>() -> f64 {
    2e4 * T::EPSILON
}

fn check_linear<T: Real, X: Expansion<T>>(name: &str, x: &X, chain: Chain) {
    let mut scene = Scene::<T>::new(chain, 1.0, CORNER, x.strengths(), 7);
    let (first, second) = (scene.strengths.clone(), Scene::<T>::new(chain, 1.0, CORNER, x.strengths(), 8).strengths);
    let a = scene.run(x, chain);
    scene.strengths = second.clone();
    let b = scene.run(x, chain);
    scene.strengths = first.iter().zip(&second).map(|(&s, &t)| T::of(2.0) * s - T::of(0.75) * t).collect();
    let both = scene.run(x, chain);
    let sum: Vec<T> = a.iter().zip(&b).map(|(&s, &t)| T::of(2.0) * s - T::of(0.75) * t).collect();
    let d = difference(&both, &sum, x.values());
    assert!(d < rounding::<T>(), "{name}: {chain:?} is not linear: {d:e}");
}

fn check_translation<T: Real, X: Expansion<T>>(name: &str, x: &X, chain: Chain) {
    let at = |corner| Scene::<T>::new(chain, 1.0, corner, x.strengths(), 9).run(x, chain);
    let d = difference(&at([-17.5, 4.0, 2.25]), &at(CORNER), x.values());
    assert!(d < rounding::<T>(), "{name}: {chain:?} changes by {d:e} under a translation");
}

/// Checks that halving all lengths multiplies each value of each strength by the same power of two as for the kernel
/// itself.
fn check_scale<T: Real, X: Expansion<T>>(name: &str, x: &X, chain: Chain) {
    for component in 0..x.strengths() {
        let scene = |side: f64| {
            let mut scene = Scene::<T>::new(chain, side, CORNER.map(|c| c * side), x.strengths(), 10);
            let others = scene.strengths.iter_mut().enumerate().filter(|(k, _)| k % x.strengths() != component);
            others.for_each(|(_, s)| *s = T::of(0.0));
            scene
        };
        let (large, small) = (scene(1.0), scene(0.5));
        let (large_direct, small_direct) = (large.direct(x), small.direct(x));
        let norm = |v: &[T], i: usize| v.iter().skip(i).step_by(x.values()).map(|v| v.f64().powi(2)).sum::<f64>();
        let factor = |i: usize| (0.5 * (norm(&small_direct, i) / norm(&large_direct, i)).log2()).round().exp2();
        let factors: Vec<f64> =
            (0..x.values()).map(|i| if norm(&large_direct, i) > 0.0 { factor(i) } else { 0.0 }).collect();
        let dilated: Vec<T> =
            large.run(x, chain).iter().enumerate().map(|(k, &v)| v * T::of(factors[k % x.values()])).collect();
        let d = difference(&small.run(x, chain), &dilated, x.values());
        assert!(d < rounding::<T>(), "{name}: {chain:?} changes by {d:e} under a dilation, strength {component}");
    }
}
