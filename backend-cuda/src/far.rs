//! What carries the far field on the device: the stages of an expansion, each enqueued whole.

use crate::base::Base;
use fmm_traits::Error;
use std::fmt::Debug;

/// The far field of a plan. Stages come in the order of the driver, on one stream.
pub(crate) trait FarField: Debug + Send {
    /// Arranges the edges of new points and allocates for them. On an error everything is as before.
    fn place(&mut self, base: &Base) -> Result<(), Error>;
    /// Sources of leaves to multipoles.
    fn p2m(&mut self, base: &Base) -> Result<(), Error>;
    /// Multipoles of the children of the boxes of a level to theirs.
    fn m2m(&mut self, base: &Base, level: usize) -> Result<(), Error>;
    /// V list; locals start from zero.
    fn m2l(&mut self, base: &Base) -> Result<(), Error>;
    /// X list.
    fn p2l(&mut self, base: &Base) -> Result<(), Error>;
    /// Locals of the parents of the boxes of a level to theirs.
    fn l2l(&mut self, base: &Base, level: usize) -> Result<(), Error>;
    /// Locals of leaves, added to the values of their targets.
    fn l2p(&mut self, base: &Base) -> Result<(), Error>;
    /// W list, added likewise.
    fn m2p(&mut self, base: &Base) -> Result<(), Error>;
    /// Has M2L made in parts of at most so many frequencies, as where spectra do not fit; until the points change. Of expansions without
    /// spectra nothing changes.
    fn hold(&mut self, _most: usize) {}
    /// Whether its levels of few boxes leave room for P2P beside them.
    fn leaves_room(&self) -> bool;
    /// Bytes of device memory held.
    fn bytes(&self) -> u64;
}
