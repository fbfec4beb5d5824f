//! Integration tests of the facade and the command, one binary.
//!
//! | module | checks |
//! |---|---|
//! | `adversary` | clouds that defeat a measurement at few leaves: the error over all targets and in the hard region |
//! | `api` | batch = loop, linearity, transpose, subsets, moved points, cancellation, near field, own kernel |
//! | `attributes` | radii and widths of single sources, against sums in the test |
//! | `bad_input` | every wrong argument is an error that carries the numbers; nothing is half-done |
//! | `cli` | the contract of `fmm run`: options, JSON, `.npz`, one-line errors, closed pipes |
//! | `coordinates` | kernels of a quadratic form, summed in coordinates in which they are radial |
//! | `costs` | the cost model: its choices, `fmm calibrate`, and the report of a plan about it |
//! | `coverage` | measured error bounds hold for other strengths |
//! | `fuzz` | no bytes and no numbers make the command or the library panic |
//! | `gpu` | the promise and the facade on an NVIDIA GPU (`--ignored gpu`); one line without a GPU |
//! | `interpolation` | the promise for the kernels of the catalog, ways of asking, choices, refusals |
//! | `odd_input` | empty, single, coincident, far, huge and tiny inputs give the right sums |
//! | `page` | the page of `fmm compare` in headless Chromium (`scripts/browser-test.sh`) |
//! | `plane` | the kernels of the plane: promise, conventions, options, complex files, pictures |
//! | `probe` | how tests read the measurements of a plan |
//! | `quadtree` | kernels of one's own in the plane: formulas, promise, agreement with Laurent series, the command |
//! | `ranks` | several ranks: the bits of one rank, rounding with the other exchanges, one error for all, `fmm run --ranks` |
//! | `ranks_choice` | ranks choose method and order as one rank, on a sample that no rank gathers |
//! | `ranks_overlap` | near pairs are summed while messages of other ranks are awaited |
//! | `strangers` | untuned kernels: the promise, or a refusal with the right floor; rows for `benches/promise.py` |
//! | `threads` | the number of threads changes no bit |
//! | `timing` | upper bounds of times (`scripts/timing-tests.sh`) |
//! | `tolerance` | errors stay below the tolerance for every kernel, cloud and precision |
//! | `traced` | kernels made at run time: twins, self interaction, the catalog, the command, any text |
//! | `transposed` | transposed sums with gradients, of kernels with and without K(−r) = K(r)ᵀ, against sums in the test |
//! | `variants` | spherical harmonics and treecodes: tolerance, agreement, refusals, `fmm compare` |
//! | `own_kernel` | a frozen kernel of a user compiles, unless the trait has changed |

mod adversary;
mod api;
mod attributes;
mod bad_input;
mod cli;
mod coordinates;
mod costs;
mod coverage;
mod fuzz;
mod gpu;
mod gpu_arrays;
mod gpu_as_cpu;
mod gpu_hybrid;
mod interpolation;
mod odd_input;
mod outliers;
mod page;
mod plane;
mod probe;
mod quadtree;
mod ranks;
mod ranks_choice;
mod ranks_overlap;
mod strangers;
mod threads;
mod timing;
mod tolerance;
mod traced;
mod transposed;
mod variants;

#[allow(dead_code, reason = "that it compiles is the test")]
#[path = "../frozen/own_kernel.rs"]
mod own_kernel;

use fmm::{Fmm, Kernel, Lane, Method, Outputs, Targets};
use fmm_traits::testkit::{clouds::CloudKind, in_turn};

/// Potential and gradient.
fn both() -> Outputs {
    Outputs::POTENTIAL | Outputs::GRADIENT
}

/// A uniform cloud.
fn uniform(n: usize, seed: u64) -> Vec<f64> {
    CloudKind::Uniform.points(n, seed)
}

/// Strengths in (−1, 1).
fn strengths(n: usize, seed: u64) -> Vec<f64> {
    fmm::demo::strengths(n, 1, seed).into_iter().map(|x| 2.0 * x - 1.0).collect()
}

/// ‖a − b‖₂ / ‖b‖₂; 0 when both are 0.
fn difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
    let d = norm(&mut a.iter().zip(b).map(|(x, y)| x - y));
    if d == 0.0 { 0.0 } else { d / norm(&mut b.iter().copied()) }
}

/// The FMM by equivalent densities, for any number of points.
fn fast(family: impl Into<fmm::AnyFamily>) -> Fmm {
    Fmm::new(family).method(Method::EquivalentDensities)
}

/// The direct sum of the same request.
fn direct<'a>(builder: &Fmm, sources: &[f64], targets: impl Into<Targets<'a>>, q: &[f64]) -> fmm::Output {
    builder.clone().method(Method::Direct).plan(sources, targets).unwrap().apply(q).unwrap()
}

/// The fraction of the pairs that are not summed directly.
fn far_share(described: &fmm::Description) -> f64 {
    1.0 - described.near_pairs as f64 / (described.n_sources * described.n_targets) as f64
}

/// A user's own kernel, 1/r, in the fewest lines.
#[derive(Clone, Debug)]
struct Own;

impl Kernel for Own {
    const NAME: &'static str = "own";
    #[inline(always)]
    fn eval<V: Lane>(_: &[V], r: &[V], q: &[V], u: &mut [V]) {
        u[0] = q[0] * (r[0] * r[0] + r[1] * r[1] + r[2] * r[2]).rsqrt();
    }
    fn value_degree(_: usize) -> i32 {
        -1
    }
}
