//! Norms of errors.

/// The error that a tolerance bounds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Norm {
    /// ‖e‖/‖u‖ over all targets, for the potential and for the gradient.
    #[default]
    L2,
    /// The largest |e_i|/|u_i| of a complex potential (Goude & Engblom 2012, eq. 5.3). It grows with the number of
    /// targets, and has no bound if the potential passes through 0.
    Max,
}
