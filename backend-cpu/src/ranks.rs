//! What stages ask of other ranks ([`fmm_traits::shared`]). On one machine there is nothing to ask.

use fmm_traits::{Edges, Error, Exchange, NumbersMut, Real, Tree};
use std::any::Any;

/// How this rank reaches the others.
pub fn exchange(tree: &Tree) -> Option<&dyn Exchange> {
    tree.shared.as_ref()?.exchange.as_deref()
}

/// Whether this rank sends multipoles to others, or gets some.
pub fn active(tree: &Tree) -> bool {
    exchange(tree).is_some_and(|exchange| exchange.active())
}

/// Replaces each number by the largest on any rank.
pub fn largest(tree: &Tree, numbers: &mut [f64]) -> Result<(), Error> {
    exchange(tree).map_or(Ok(()), |exchange| exchange.largest(numbers))
}

/// Completes `width` numbers for each box.
pub fn complete<T: Real>(tree: &Tree, rows: &mut Vec<T>, width: usize) -> Result<(), Error> {
    exchange(tree).map_or(Ok(()), |exchange| complete_by(exchange, rows, width))
}

/// Completes `width` numbers for each box by an `exchange`.
#[allow(clippy::ptr_arg, reason = "a slice has no `Any`")]
pub fn complete_by<T: Real>(exchange: &dyn Exchange, rows: &mut Vec<T>, width: usize) -> Result<(), Error> {
    let rows: &mut dyn Any = rows;
    if let Some(rows) = rows.downcast_mut::<Vec<f32>>() {
        return exchange.complete(NumbersMut::F32(rows), width);
    }
    match rows.downcast_mut::<Vec<f64>>() {
        Some(rows) => exchange.complete(NumbersMut::F64(rows), width),
        None => Err(Error::Unsupported { operation: "an exchange", reason: "numbers are f32 or f64".to_string() }),
    }
}

/// The M2M edges that follow the exchange, if there are any.
pub fn after(tree: &Tree) -> Option<&Edges> {
    exchange(tree).map(|exchange| exchange.after()).filter(|edges| !edges.is_empty())
}

/// Levels on which edges of `after` end, the deepest first.
pub fn levels_of(tree: &Tree, after: &Edges) -> impl Iterator<Item = usize> {
    (0..tree.levels()).rev().filter(move |&level| {
        let boxes = tree.level(level);
        after.starts[boxes.start] < after.starts[boxes.end]
    })
}
