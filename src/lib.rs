//! Fast multipole summation: given N sources with strengths q and M targets,
//!
//! u(xᵢ) = Σⱼ K(xᵢ − yⱼ) qⱼ,  i = 1 … M,
//!
//! in O(N + M) time to a promised tolerance. K is any kernel that is smooth away from r = 0, such as the
//! Green's function of an elliptic equation, a covariance or a radial basis function. The plan measures its error.
//!
//! ```
//! use fmm::{Fmm, Laplace, Outputs, Targets, demo};
//!
//! let points = demo::points(demo::Demo::Uniform, 3000, 1);
//! let charges = demo::strengths(3000, 1, 1);
//! let plan = Fmm::new(Laplace)
//!     .tolerance(1e-6)
//!     .outputs(Outputs::POTENTIAL | Outputs::GRADIENT)
//!     .plan(&points, Targets::Sources)?;
//! let out = plan.apply(&charges)?;
//! assert_eq!((out.potential.len(), out.gradient.len()), (3000, 9000));
//! assert!(plan.verify(&charges, 500)?.worst() <= 1e-6);
//! # Ok::<(), fmm::Error>(())
//! ```
//!
//! # Shapes and order
//! Points are flat `N×3` arrays, row-major (`points.as_flattened()` turns `&[[f64; 3]]` into one). In the plane
//! ([`Harmonic2d`], [`Laplace2d`]) points are `N×2`. Strengths are `N×s`, outputs `M×…`, all in the caller's order.
//! Units are the caller's.
//!
//! # Accuracy
//! `tolerance` bounds the relative ℓ2 error of *each* requested output over the targets, for strengths drawn at
//! random (uniform in (0, 1) or normal). The plan measures this error on its points, with its kernel, and takes the
//! smallest order that keeps the tolerance; [`Description::probe`] reports the measurement. If no order keeps the
//! tolerance, planning with a named method fails with [`Error::ToleranceFloor`]; [`Method::Auto`] may use direct
//! summation instead. Strengths that cancel can make the sum small beside its terms. The error relative to the sum is
//! then larger; [`Plan::verify`] measures the error for given strengths.
//!
//! # Self terms
//! When targets are the sources (all or a subset), target i skips source i by index, unless the plan includes
//! self terms ([`Fmm::self_interaction`]). Otherwise a source that coincides with a target contributes zero if the
//! kernel is singular, K(0)q if not.
//! [`Method::Direct`] follows the same rule.
//!
//! # Numbers
//! Strengths are f32 or f64, and sums have the type of the strengths, whatever the [precision](Fmm::precision) of the
//! arithmetic. On a GPU, [`Fmm::plan_on_device`] and [`Plan::apply_on_device`] take and give arrays in device memory.
//!
//! # Threads
//! Each plan has its own pool of [`Fmm::threads`] threads. The number of threads changes no bit of a result.
//!
//! # Ranks
//! [`Fmm::ranks`] shares one sum out to several ranks, such as the threads of [`ranks::threads`].

mod apply;
mod attributes;
mod backend;
mod calibrate;
mod candidates;
pub mod catalog;
mod choice;
mod cloud;
mod coordinates;
mod costs;
mod decide;
pub mod demo;
mod describe;
mod engine;
mod machine;
mod memory;
mod mesh;
mod near;
mod output;
mod parts;
mod plan;
mod probe;
mod processor;
mod request;
mod rng;
mod threads;
mod validate;
mod variant;
mod work;

pub use adaptive2d::{Analytic, Norm};
pub use backend::{Backend, Cpu, Cuda, Devices, Hybrid};
pub use backend_cpu::Isa;
/// The crate of slices and streams that plans on a device take.
pub use backend_cuda::cudarc;
pub use backend_cuda::{Ceilings, DeviceArray, DeviceInfo, DeviceScalar, DeviceStream, RawArray};
pub use costs::{CostModel, Costs, OrderCosts};
pub use describe::Description;
pub use fmm_families::AnyFamily;
pub use fmm_kernels::{
    Gravity, Harmonic2d, Laplace, Laplace2d, Laplace2dDipole, Laplace2dMixed, LaplaceDipole, LaplaceMixed, Stokes,
    StokesPressure, Stresslet, Yukawa,
};
pub use fmm_traits::{
    Error, ErrorReport, Family, Kernel, Lane, Member, Number, OutputError, Outputs, Precision, SelfInteraction, Stage,
    Symbol, Targets, Traced, Visitor,
};
pub use machine::{available_memory, peak_memory, processor};
pub use mesh::{Edges, PlanSeconds};
pub use near::NearBlock;
pub use output::{DeviceOutput, Output};
/// Several ranks: threads of one process, or anything else that sends messages.
pub mod ranks {
    pub use crate::engine::{Counted, RanksReport};
    pub use fmm_dist::census::{Census, FRONTIER_RANKS, Kinds};
    pub use fmm_dist::simulate::{Event, LogGp, Recorded, Replay, replay};
    pub use fmm_dist::{Alone, Comm, Strategy, World, threads, threads_within};
}
pub use plan::{Plan, evaluate};
pub use probe::{ProbeOutput, ProbeReport, ProbeStratum};
pub use request::{Fmm, Method, Progress};
pub use variant::{Expansion, ListPolicy, Translation, Truncation};
