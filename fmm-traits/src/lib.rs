//! The traits and data types on which all parts of the framework agree. This crate knows no concrete tree, kernel or
//! device.
//!
//! Start with [`driver`], the loop over the stages of the method ([`Step`] has their order). Then read [`kernel`]
//! (Green's functions), [`tree`] (boxes and the eight edge lists) and [`expansion`] (the operators).

pub mod attributes;
pub mod constant_one;
mod cores;
pub mod driver;
pub mod dual;
pub mod error;
pub mod expansion;
pub mod facts;
pub mod kernel;
pub mod lane;
mod linear_map;
pub mod member;
pub mod near;
pub mod record;
pub mod report;
pub mod shared;
mod special;
mod step;
pub mod sums;
pub mod tape;
#[cfg(feature = "testkit")]
pub mod testkit;
pub mod traced;
pub mod tree;

pub use attributes::{Factor, MAX_NODES, Nodes, Spread, weight};
pub use cores::cores;
pub use driver::{Observer, Progress, Schedule, Stage, Stages, Step, evaluate};
pub use error::Error;
pub use expansion::{Cloud, Cube, Expansion};
pub use kernel::{Family, Gradient, Hessian, Kernel, OutputColumns, Outputs, Visitor};
pub use lane::{Lane, Real, Simd, SimdLane};
pub use linear_map::LinearMap;
pub use member::{Kernels, Member, Members, SelfInteraction};
pub use near::{NearField, NearFields};
pub use record::record;
pub use report::{ErrorReport, OutputError};
pub use shared::{Exchange, Incoming, Messages, Round, Shared};
pub use sums::{Number, Numbers, NumbersMut, Policy, Precision, Solver, StageSeconds, Targets};
pub use tape::Tape;
pub use traced::{Symbol, Traced};
pub use tree::{Edges, Hierarchy, Lists, Points, Tree};
