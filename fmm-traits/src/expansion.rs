//! The operators of an expansion, one box or one pair of boxes at a time. They are plain mathematics, which tests can
//! check alone. Every batched or device implementation is compared with them.

use crate::lane::Real;

/// A cube: centre and side, in the user's units.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cube {
    /// Centre.
    pub center: [f64; 3],
    /// Side length.
    pub side: f64,
}

/// Points and their strengths: point i has `xyz[i]` and `strengths[i * components ..]`.
#[derive(Clone, Copy, Debug)]
pub struct Cloud<'a, T> {
    /// Coordinates in the user's units.
    pub xyz: &'a [[f64; 3]],
    /// Strengths, point-major; may be empty for targets.
    pub strengths: &'a [T],
}

/// An expansion of precision `T`. Every operator **adds** to its last argument; the two `finish` functions replace it.
///
/// A multipole is a row of [`multipole_len`](Expansion::multipole_len) numbers, a local a row of
/// [`local_len`](Expansion::local_len) numbers. Their meaning is private to the expansion. Values at targets are
/// those of the kernel, [`values`](Expansion::values) per target, point-major.
///
/// Some expansions work in two phases. Equivalent densities, for example, add up *check values* and then solve for a
/// density. The second phase is [`finish_multipole`](Expansion::finish_multipole) and
/// [`finish_local`](Expansion::finish_local), called once all contributions to a row are in. By default they do
/// nothing.
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
    /// Sources → values at targets, pair by pair. With `same`, targets are the sources and target i skips source i.
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
}
