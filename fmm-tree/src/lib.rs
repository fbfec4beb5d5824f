//! Points → Morton order → adaptive octree → U, V, W, X edge lists.
//!
//! [`build`] makes the tree, [`uvwx`] its edge lists; [`invariants::check`] verifies both.

mod build;
pub mod invariants;
mod lists;
mod morton;
mod root;
mod sort;

pub use build::{BuildOptions, BuildReport, build, build_reported, deepest_level, smallest_root};
pub use lists::{ListOptions, uvwx};
