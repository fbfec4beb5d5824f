//! Integration tests of the CPU backend, one binary.
//!
//! | module | checks |
//! |---|---|
//! | `accuracy` | errors against direct summation stay below the table of orders, in every precision |
//! | `batch` | several sets of strengths at once have the bits of separate evaluations |
//! | `bits` | threads, repetition, concurrency and moved points change no bit; instruction sets change only the last
//! bits |
//! | `direct` | direct sums equal a plain double loop, at any scale, with self terms skipped by index |
//! | `edges` | trees and lists that the plan cannot carry out are refused |
//! | `far` | errors do not grow with the distance from the sources |
//! | `native` | pair loops by the C compiler give the sums of the interpreter |
//! | `oracle` | every stage agrees with the pair-by-pair form of the same expansion |
//! | `rates` | every kernel is compiled into the pair sum (`scripts/timing-tests.sh`) |
//! | `scales` | units of length beyond the range of f32 change no error |
//! | `spherical` | every stage of spherical harmonics agrees with its pair-by-pair form, for every list policy |
//! | `sums` | the pair sum: padding, borders of tiles and blocks, skipped sources |

mod accuracy;
mod batch;
mod bits;
mod direct;
mod edges;
mod elsewhere;
mod far;
mod native;
mod oracle;
mod rates;
mod scales;
mod spherical;
mod sums;

use backend_cpu::{Isa, OctreeSolver, Settings};
use fmm_families::{AnyFamily, Expansion};
use fmm_kernels::equivalent::Fill;
use fmm_kernels::spherical::SphericalOptions;
use fmm_traits::testkit::clouds::{CloudKind, normal_strengths};
use fmm_traits::testkit::plane::Log;
use fmm_traits::{
    Error, Family, Gradient, Kernel, Lists, OutputColumns, OutputError, Outputs, Precision, Targets, Tree, Visitor,
};
use fmm_tree::{BuildOptions, ListOptions, build, uvwx};

/// A family that is compiled for every instruction set and precision: by `fmm-families`, so that tests compile no
/// stages, or once here.
trait Known: Family + Clone {
    fn any(&self) -> AnyFamily;
}
macro_rules! known {
    ($($family:ident)*) => {
        $(impl Known for fmm_kernels::$family {
            fn any(&self) -> AnyFamily {
                self.clone().into()
            }
        })*
    };
}
known!(Gravity Laplace LaplaceDipole LaplaceMixed Stokes StokesPressure Stresslet Yukawa);
impl Known for Log {
    fn any(&self) -> AnyFamily {
        AnyFamily::new(self.clone())
    }
}

/// A plan by equivalent densities on surfaces.
fn plan(
    family: &impl Known,
    outputs: Outputs,
    tree: Tree,
    lists: Lists,
    settings: &Settings,
) -> Result<Box<dyn OctreeSolver>, Error> {
    family.any().in_space(outputs)?.solver(tree, lists, settings, Expansion::Equivalent(Fill::Surface))
}

/// A plan by spherical harmonics.
fn harmonics(
    family: &impl Known,
    outputs: Outputs,
    tree: Tree,
    lists: Lists,
    settings: &Settings,
    options: SphericalOptions,
) -> Result<Box<dyn OctreeSolver>, Error> {
    family.any().in_space(outputs)?.solver(tree, lists, settings, Expansion::Spherical(options))
}

/// Direct sums of each set of strengths.
fn direct_batch(
    family: &impl Known,
    outputs: Outputs,
    sources: &[f64],
    strengths: &[&[f64]],
    targets: Targets<'_>,
    precision: Precision,
    isa: Isa,
) -> Result<Vec<Vec<f64>>, Error> {
    family.any().direct(outputs, sources, strengths, targets, precision, isa)
}

/// Direct sums of one set.
fn direct(
    family: &impl Known,
    outputs: Outputs,
    sources: &[f64],
    strengths: &[f64],
    targets: Targets<'_>,
    precision: Precision,
    isa: Isa,
) -> Result<Vec<f64>, Error> {
    Ok(direct_batch(family, outputs, sources, &[strengths], targets, precision, isa)?.remove(0))
}

/// Potential and gradient.
fn both() -> Outputs {
    Outputs::POTENTIAL | Outputs::GRADIENT
}

/// Normal strengths for the sources `points`.
fn strengths<F: Known>(points: &[f64]) -> Vec<f64> {
    normal_strengths(points.len() / 3 * F::Source::STRENGTHS, 5)
}

/// A tree with leaves of up to `ncrit` points, and its lists with every W and X edge kept.
fn geometry(sources: &[f64], targets: Option<&[f64]>, ncrit: usize) -> (Tree, Lists) {
    let tree = build(sources, targets, &BuildOptions { ncrit: Some(ncrit), ..Default::default() }).unwrap();
    let lists = uvwx(&tree, &ListOptions::default()).unwrap();
    (tree, lists)
}

/// Settings with one precision for near and far field.
fn settings(order: usize, precision: Precision) -> Settings {
    Settings { order, precision, isa: Isa::detect(), cache: None, near: None }
}

/// Values of one application of `solver` to `strengths`.
fn apply(solver: &dyn OctreeSolver, strengths: &[f64]) -> Vec<f64> {
    let mut out = vec![f64::NAN; solver.tree().targets.len() * solver.values()];
    solver.apply(strengths, &mut out, &mut |_, _| true).unwrap();
    out
}

/// Plans and applies.
fn solve<F: Known>(family: &F, (tree, lists): (Tree, Lists), settings: &Settings, strengths: &[f64]) -> Vec<f64> {
    apply(&*plan(family, both(), tree, lists, settings).unwrap(), strengths)
}

/// Largest relative ℓ2 difference over potential and gradient. A quarter of each row are potentials.
fn difference<F: Known>(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let n = F::Source::VALUES;
    let part = |v: &[f64], from: usize, to: usize| -> Vec<f64> {
        v.chunks_exact(4 * n).flat_map(|row| row[from..to].to_vec()).collect()
    };
    let errors = [(0, n), (n, 4 * n)]
        .map(|(from, to)| OutputError::of(both(), &part(found, from, to), &part(expected, from, to), to - from).rel_l2);
    errors.into_iter().fold(0.0, |m, e| if e.is_nan() { f64::INFINITY } else { e.max(m) })
}

/// `n` uniform points in the unit cube.
fn uniform(n: usize, seed: u64) -> Vec<f64> {
    CloudKind::Uniform.points(n, seed)
}
