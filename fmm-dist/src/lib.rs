//! One fast multipole sum over several ranks.
//!
//! A *rank* holds some of the points and computes the sums at some of the targets: a thread, or a process. Ranks talk
//! through a [`Comm`]. The order of reading:
//!
//! 1. [`comm`]: messages, and their transports [`Alone`] and [`threads`]. [`world`]: what ranks do together, and how
//!    the error of one becomes the error of all.
//! 2. [`coarse`]: the upper boxes of the tree of all points, which every rank knows. Its leaves are shared out. `survey`
//!    makes it.
//! 3. [`place`](place()): points travel to the rank that owns their box, which builds its part of the tree.
//! 4. [`local`]: the locally essential tree (Lashuk et al. 2009, §III-A), an ordinary tree with ghosts.
//! 5. [`exchange`]: how multipoles of shared boxes are completed, in four ways.
//! 6. [`thin`]: a small problem cut out of the tree of all ranks.
//! 7. [`simulate`]: what the messages would cost on a network. [`census`]: which messages there would be on thousands of
//!    ranks.

pub mod census;
pub mod coarse;
pub mod comm;
pub mod exchange;
pub mod local;
pub mod place;
pub mod simulate;
mod survey;
pub mod thin;
pub mod wire;
pub mod world;

pub use comm::{Alone, Comm, threads, threads_within, worlds};
pub use exchange::Strategy;
pub use place::{Asked, Placed, Ready, Route, place};
pub use survey::coarse_capacity;
pub use world::World;
