//! Tools for tests of a new kernel, expansion, tree or backend.

pub mod clouds;
pub mod expansion;
pub mod kernel;
pub mod plane;
