//! Tools for tests of a new kernel, expansion, tree or backend.

pub mod clouds;
pub mod expansion;
pub mod kernel;
pub mod plane;

/// Whether case `k` of a large table runs: one case in `parts`, or all cases if the variable `FMM_EVERY_CASE` is set. Number
/// the cases so that each row and each column of the table has some: by row + column, or one after the other if `parts`
/// and the number of columns have no common divisor.
pub fn in_turn(k: usize, parts: usize) -> bool {
    k.is_multiple_of(parts) || std::env::var_os("FMM_EVERY_CASE").is_some()
}
