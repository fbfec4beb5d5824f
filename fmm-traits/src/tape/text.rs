//! A tape as text, in the language that [`Traced::parse`](crate::traced::Traced::parse) reads.

use super::{Op, Tape};
use std::fmt::Write;

impl Tape {
    /// One line per operation, then one line per value, which begins with `keyword`. `parameters` and `coordinates` are
    /// the names of the inputs. Names of results begin with `prefix`.
    pub fn text(&self, parameters: &[String], coordinates: &[&str], prefix: &str, keyword: &str) -> String {
        let mut out = String::new();
        let name = |k: u32| match self.nodes()[k as usize].op {
            Op::Parameter(p) => parameters.get(p).cloned().unwrap_or(format!("p{p}")),
            Op::Coordinate(axis) => coordinates[axis].to_string(),
            Op::Strength(j) => format!("q{}", j + 1),
            Op::Constant(bits) => format!("({:?})", f64::from_bits(bits)),
            _ => format!("{prefix}{k}"),
        };
        for (i, node) in self.nodes().iter().enumerate() {
            let [a, b, c] = node.args.map(name);
            let infix = |operator: &str| format!("{a} {operator} {b}");
            let call = |function: &str| format!("{function}({a})");
            let expression = match node.op {
                Op::Parameter(_) | Op::Coordinate(_) | Op::Strength(_) | Op::Constant(_) => continue,
                Op::Add => infix("+"),
                Op::Sub => infix("-"),
                Op::Mul => infix("*"),
                Op::Div => infix("/"),
                Op::Neg => format!("-{a}"),
                Op::Fma => format!("fma({a}, {b}, {c})"),
                Op::Sqrt => call("sqrt"),
                Op::Rsqrt => call("rsqrt"),
                Op::Exp => call("exp"),
                Op::Ln => call("ln"),
                Op::Sin => call("sin"),
                Op::Cos => call("cos"),
                Op::Erf => call("erf"),
                Op::BesselK0 => call("bessel_k0"),
                Op::BesselK1 => call("bessel_k1"),
                Op::Lt => infix("<"),
                Op::Le => infix("<="),
                Op::Eq => infix("=="),
                Op::And => infix("and"),
                Op::Or => infix("or"),
                Op::Not => format!("not {a}"),
                Op::Select => format!("where({a}, {b}, {c})"),
            };
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{prefix}{i} = {expression}");
        }
        for &v in self.values() {
            let _ = writeln!(out, "{keyword} {}", name(v));
        }
        out
    }
}
