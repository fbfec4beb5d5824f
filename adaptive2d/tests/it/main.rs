//! Integration tests of the two-dimensional method.

mod lists;
mod operators;
mod stages;
mod tolerance;
