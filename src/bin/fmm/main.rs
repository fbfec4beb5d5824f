//! The command `fmm`.

fn main() {}
