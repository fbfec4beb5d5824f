//! The far field on the device: the stages of an expansion, each enqueued as a whole.

use crate::base::Base;
use crate::programs::Groups;
use crate::ranks::Ranks;
use fmm_traits::Error;
use std::any::Any;
use std::fmt::Debug;

/// What a far field has made for new points, until it takes them.
pub(crate) type Made = Box<dyn Any + Send>;

/// The far field of a plan. Stages come in the order of the driver, on one stream.
pub(crate) trait FarField: Debug + Send {
    /// The groups of L2P and M2P.
    fn groups(&self) -> [Groups; 2];
    /// Arranges the edges of new points and allocates workspaces for them, beside those of the present points.
    fn make(&mut self, base: &Base) -> Result<Made, Error>;
    /// Takes the new points for which it has [made](FarField::make) something.
    fn take(&mut self, made: Made);
    /// P2M: sources of leaves → multipoles of leaves.
    fn p2m(&mut self, base: &Base) -> Result<(), Error>;
    /// M2M: multipoles of children → multipoles of their parents, the boxes of `level`.
    fn m2m(&mut self, base: &Base, level: usize) -> Result<(), Error>;
    /// Completes the multipoles that several ranks share, by those of the other ranks.
    fn exchange(&mut self, base: &Base, ranks: &Ranks) -> Result<(), Error>;
    /// M2L (V list). Locals start from zero.
    fn m2l(&mut self, base: &Base) -> Result<(), Error>;
    /// P2L (X list).
    fn p2l(&mut self, base: &Base) -> Result<(), Error>;
    /// L2L: locals of parents → locals of the boxes of `level`.
    fn l2l(&mut self, base: &Base, level: usize) -> Result<(), Error>;
    /// L2P: locals of leaves, added to the values of their targets.
    fn l2p(&mut self, base: &Base) -> Result<(), Error>;
    /// M2P (W list), added to the values of the targets.
    fn m2p(&mut self, base: &Base) -> Result<(), Error>;
    /// Makes M2L take at most `_most` frequencies at a time, as if more spectra did not fit into memory. Lasts until
    /// the points change. Does nothing for expansions without spectra.
    fn hold(&mut self, _most: usize) {}
    /// Whether the far field leaves parts of the device idle on levels with few boxes, so that P2P may run beside it.
    fn leaves_room(&self) -> bool;
    /// Bytes of device memory held.
    fn bytes(&self) -> u64;
}
