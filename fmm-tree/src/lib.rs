//! Points → Morton order → adaptive octree → edge lists.
//!
//! [`build`] makes the tree, [`uvwx`] its edge lists; [`invariants::check`] verifies both. Other list policies:
//! [`stencil119`], with [`domains`] the 61 stencil, and [`treecode`].

mod build;
pub mod closeness;
pub mod domains;
pub mod invariants;
mod lists;
mod morton;
mod root;
mod sort;
mod stencil;
mod treecode;

pub use build::{
    BuildOptions, BuildReport, CAPACITY_STEPS, build, build_reported, build_uniform, deepest_level, root_for,
    smallest_root,
};
pub use closeness::closeness;
pub use lists::{ListOptions, uvwx};
pub use stencil::stencil119;
pub use treecode::{TreecodeOptions, treecode};
