//! The operators of an expansion, one box or one pair at a time: plain mathematics that can be
//! property-tested alone, and the oracle of every batched or device implementation.

use crate::{Error, lane::Real};

/// A cube: centre and side, in the user's units.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cube {
    /// Centre.
    pub center: [f64; 3],
    /// Side length.
    pub side: f64,
}

/// Points and the numbers they carry: `xyz[i]`, `values[i * components ..]`.
#[derive(Clone, Copy, Debug)]
pub struct Cloud<'a, T> {
    /// Coordinates in the user's units.
    pub xyz: &'a [[f64; 3]],
    /// Strengths, point-major; may be empty for targets.
    pub strengths: &'a [T],
}

/// An expansion of precision `T`. Every operator **adds** to its last argument.
///
/// Multipoles and locals are opaque rows of [`multipole_len`](Expansion::multipole_len) and
/// [`local_len`](Expansion::local_len) numbers; `values` rows are those of the kernel at the
/// targets, [`values`](Expansion::values) per target, point-major.
///
/// Two-phase expansions (equivalent densities accumulate *check values* and then solve) finish a
/// row once all contributions are in, through [`finish_multipole`](Expansion::finish_multipole)
/// and [`finish_local`](Expansion::finish_local); the default does nothing.
pub trait Expansion<T: Real>: Send + Sync {
    /// Numbers in a multipole row.
    fn multipole_len(&self) -> usize;
    /// Numbers in a local row.
    fn local_len(&self) -> usize;
    /// Strengths per source.
    fn strengths(&self) -> usize;
    /// Values per target.
    fn values(&self) -> usize;
    /// Sources inside `at` → multipole of `at`.
    fn p2m(&self, at: Cube, sources: Cloud<T>, multipole: &mut [T]);
    /// Called once per box after its last P2M or M2M.
    fn finish_multipole(&self, at: Cube, multipole: &mut [T]) {
        let _ = (at, multipole);
    }
    /// Finished multipole of `child` → multipole of its parent `at`.
    fn m2m(&self, at: Cube, child: Cube, from: &[T], multipole: &mut [T]);
    /// Finished multipole of `source` → local of `at`.
    fn m2l(&self, at: Cube, source: Cube, from: &[T], local: &mut [T]);
    /// Sources in `source` → local of `at`.
    fn p2l(&self, at: Cube, source: Cube, sources: Cloud<T>, local: &mut [T]);
    /// Finished local of `parent` → local of its child `at`.
    fn l2l(&self, at: Cube, parent: Cube, from: &[T], local: &mut [T]);
    /// Called once per box after its last M2L, P2L and L2L.
    fn finish_local(&self, at: Cube, local: &mut [T]) {
        let _ = (at, local);
    }
    /// Finished local of `at` → values at targets inside it.
    fn l2p(&self, at: Cube, local: &[T], targets: &[[f64; 3]], values: &mut [T]);
    /// Finished multipole of `source` → values at targets.
    fn m2p(&self, source: Cube, multipole: &[T], targets: &[[f64; 3]], values: &mut [T]);
    /// Sources → values at targets, pair by pair. `same` when both are the same points: target i
    /// then skips source i.
    fn p2p(&self, sources: Cloud<T>, targets: &[[f64; 3]], same: bool, values: &mut [T]);
    /// Whether the multipole of `source` may be evaluated in all of `at` (M2P).
    fn admissible(&self, at: Cube, source: Cube) -> bool;
    /// Whether the multipole of `source` may enter the local of `at` (M2L). Default: where it may be evaluated.
    fn admissible_m2l(&self, at: Cube, source: Cube) -> bool {
        self.admissible(at, source)
    }
    /// Whether sources anywhere in `source` may enter the local of `at` (P2L). Default: the mirror image of M2P.
    fn admissible_p2l(&self, at: Cube, source: Cube) -> bool {
        self.admissible(source, at)
    }
    /// Smallest order whose measured error stays below `tolerance`, or the floor as an error.
    fn order_for(tolerance: f64) -> Result<usize, Error>
    where
        Self: Sized;
}
