//! Points → Morton order → adaptive octree → edge lists.
//!
//! [`build`] makes the tree, [`uvwx`] its edge lists; [`invariants::check`] verifies both. Other list policies:
//! [`stencil119`], with [`domains`] the 61 stencil, and [`treecode`]. [`thin`] cuts a small problem out of a large one.

mod build;
pub mod domains;
mod far;
mod incoming;
pub mod invariants;
mod leaf;
mod lists;
mod morton;
mod part;
mod root;
mod sort;
mod stencil;
mod thin;
mod treecode;

pub use build::{
    BuildOptions, BuildReport, CAPACITY_STEPS, build, build_reported, build_uniform, deepest_level, root_for,
    smallest_root,
};
pub use far::{DISTANCES, FEWEST_TARGETS, TARGETS_TIMES_EDGES, far_squares};
pub use incoming::{Incoming, incoming};
pub use leaf::Leaf;
pub use lists::{ListOptions, coarsest_read, upward, uvwx};
pub use part::{Part, keys, octant_of};
pub use root::{MIDDLE_SAMPLE_SIZE, RootSample, middle_ranks, sample_index, sample_size};
pub use stencil::stencil119;
pub use thin::{Thinned, restrict, thin, thin_boxes};
pub use treecode::{TreecodeOptions, accepts, treecode};
