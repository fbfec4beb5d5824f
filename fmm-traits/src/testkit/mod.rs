//! What the author of a kernel, an expansion, a tree or a backend tests against.

pub mod clouds;
pub mod expansion;
pub mod kernel;
pub mod plane;
