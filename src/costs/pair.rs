//! The work of one pair of points, from the operations of a kernel.

use super::built_in::Operations;
use fmm_traits::Tape;
use fmm_traits::tape::Op;

/// The work of a kernel in units of a multiplication of a compiled pair loop, on a processor with these operations.
pub(super) fn work(tape: &Tape, operations: &Operations) -> f64 {
    let of = |op: Op| match op {
        Op::Parameter(_) | Op::Coordinate(_) | Op::Strength(_) | Op::Constant(_) | Op::Neg => 0.0,
        Op::Div => operations.division,
        Op::Sqrt => operations.root,
        Op::Rsqrt => operations.reciprocal_root,
        Op::Exp => operations.exponential,
        Op::Ln => operations.logarithm,
        Op::Sin | Op::Cos => operations.sine,
        Op::Erf => operations.error_function,
        Op::BesselK0 | Op::BesselK1 => operations.bessel,
        Op::Add | Op::Sub | Op::Mul | Op::Fma | Op::Lt | Op::Le | Op::Eq | Op::And | Op::Or | Op::Not | Op::Select => {
            operations.simple
        }
    };
    // What depends on parameters alone is computed once.
    let mut uniform: Vec<bool> = Vec::with_capacity(tape.nodes().len());
    let mut sum = 0.0;
    for node in tape.nodes() {
        let input = matches!(node.op, Op::Coordinate(_) | Op::Strength(_));
        let same = !input && node.args[..node.op.arity()].iter().all(|&a| uniform[a as usize]);
        uniform.push(same);
        sum += if same { 0.0 } else { of(node.op) };
    }
    // Differences of coordinates, and sums of values.
    sum + (tape.values().len() + 3) as f64
}
