//! A tape as CUDA C.

use super::{Node, Op, Tape};
use crate::lane::Real;
use crate::record::{Recorded, record_with};
use std::convert::Infallible;
use std::fmt::Write;

impl Tape {
    /// The tape as CUDA C in precision `T`:
    /// `void NAME(const T* params, T rx, T ry, T rz, const T* q, T* u)`, `u` overwritten.
    pub fn cuda<T: Real>(&self, name: &str) -> String {
        self.print::<T>(name, Style::default())
    }

    /// As [`cuda`](Tape::cuda), with the device function `rsqrt` for reciprocal roots and no test
    /// for 0: see [`shows_zero_root`](Tape::shows_zero_root).
    pub fn cuda_unguarded<T: Real>(&self, name: &str, rsqrt: &str) -> String {
        self.print::<T>(name, Style { rsqrt: Some(rsqrt), ..Style::default() })
    }

    /// As [`cuda`](Tape::cuda), but values are added to `u`, by as many fused multiply-adds as a value is a sum of
    /// products, and quotients are products with the device function `reciprocal`. The device function `is_zero`
    /// compares with 0.
    pub fn cuda_adding<T: Real>(&self, name: &str, reciprocal: &str) -> String {
        self.print::<T>(name, Style { reciprocal: Some(reciprocal), ..Style::default() })
    }

    /// `to` plus a value, or minus it, as one expression.
    fn added(&self, value: u32, minus: bool, to: String, fma: &str) -> String {
        let Node { op, args: [a, b, c] } = self.nodes[value as usize];
        let sign = if minus { "-" } else { "" };
        match op {
            Op::Mul => format!("{fma}({sign}t{a}, t{b}, {to})"),
            Op::Fma => format!("{fma}({sign}t{a}, t{b}, {})", self.added(c, minus, to, fma)),
            Op::Neg => self.added(a, !minus, to, fma),
            _ if minus => format!("({to} - t{value})"),
            _ => format!("({to} + t{value})"),
        }
    }

    fn is_zero(&self, at: u32) -> bool {
        matches!(self.nodes[at as usize].op, Op::Constant(bits) if f64::from_bits(bits) == 0.0)
    }

    fn print<T: Real>(&self, name: &str, style: Style) -> String {
        let single = T::NAME == "f32";
        let (real, suffix) = if single { ("float", "f") } else { ("double", "") };
        let axes = &["rx", "ry", "rz"][..self.dimension];
        let r: String = axes.iter().map(|axis| format!("{real} {axis}, ")).collect();
        let bessel = |op: Op| match op {
            Op::BesselK0 => Some((format!("{name}_k0"), crate::special::bessel_k0 as fn(Recorded) -> Recorded)),
            Op::BesselK1 => Some((format!("{name}_k1"), crate::special::bessel_k1 as fn(Recorded) -> Recorded)),
            _ => None,
        };
        // CUDA lacks these functions.
        let used = [Op::BesselK0, Op::BesselK1].into_iter().filter(|&used| self.any(|op| op == used));
        let functions = used.filter_map(bessel).map(|(name, f)| function(f).print::<T>(&name, Style::default()));
        let mut out: String = functions.collect();
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "__device__ __forceinline__ void {name}(const {real}* params, {r}const {real}* q, {real}* u) {{"
        );
        for (i, node) in self.nodes.iter().enumerate() {
            if let Some((function, _)) = bessel(node.op) {
                let _ = writeln!(out, "  {real} t{i}; {function}(params, t{}, q, &t{i});", node.args[0]);
                continue;
            }
            let [a, b, c] = node.args.map(|a| format!("t{a}"));
            let infix = |operator: &str| format!("{a} {operator} {b}");
            let call = |function: &str| format!("{function}{suffix}({a})");
            let expression = match node.op {
                Op::Parameter(k) => format!("params[{k}]"),
                Op::Coordinate(k) => axes[k].to_string(),
                Op::Strength(k) => format!("q[{k}]"),
                Op::Constant(bits) => literal(f64::from_bits(bits), single),
                Op::Add => infix("+"),
                Op::Sub => infix("-"),
                Op::Mul => infix("*"),
                Op::Div => match style.reciprocal {
                    Some(reciprocal) => format!("{a} * {reciprocal}({b})"),
                    None => infix("/"),
                },
                Op::Neg => format!("-{a}"),
                Op::Fma => format!("fma{suffix}({a}, {b}, {c})"),
                Op::Sqrt => call("sqrt"),
                Op::Rsqrt => match style.rsqrt {
                    Some(rsqrt) => format!("{rsqrt}({a})"),
                    None => format!("{a} == 0 ? 0 : {}", call("rsqrt")),
                },
                Op::Exp => call("exp"),
                Op::Ln => call("log"),
                Op::Sin => call("sin"),
                Op::Cos => call("cos"),
                Op::Erf => call("erf"),
                // Written above.
                Op::BesselK0 | Op::BesselK1 => continue,
                Op::Lt => infix("<"),
                Op::Le => infix("<="),
                Op::Eq if style.reciprocal.is_some() && self.is_zero(node.args[1]) => format!("is_zero({a})"),
                Op::Eq if style.reciprocal.is_some() && self.is_zero(node.args[0]) => format!("is_zero({b})"),
                Op::Eq => infix("=="),
                Op::And => infix("&&"),
                Op::Or => infix("||"),
                Op::Not => format!("!{a}"),
                Op::Select => format!("{a} ? {b} : {c}"),
            };
            let of = if node.op.is_mask() { "bool" } else { real };
            let _ = writeln!(out, "  const {of} t{i} = {expression};");
        }
        for (i, v) in self.values.iter().enumerate() {
            let _ = match style.reciprocal {
                Some(_) => {
                    writeln!(out, "  u[{i}] = {};", self.added(*v, false, format!("u[{i}]"), &format!("fma{suffix}")))
                }
                None => writeln!(out, "  u[{i}] = t{v};"),
            };
        }
        out + "}\n"
    }
}

/// How a tape is printed, if not as it stands.
#[derive(Clone, Copy, Default)]
struct Style<'a> {
    /// The function for reciprocal roots, which are then not tested for 0.
    rsqrt: Option<&'a str>,
    /// The function for reciprocals, if values are added.
    reciprocal: Option<&'a str>,
}

/// A function of one number as a tape with one coordinate.
fn function(f: fn(Recorded) -> Recorded) -> Tape {
    match record_with(1, |_, x, _| Ok::<_, Infallible>(vec![f(x[0])])) {
        Ok(tape) => tape,
    }
}

/// The constant `x` in C. Infinities and NaN are written as bits.
fn literal(x: f64, single: bool) -> String {
    match (single, x as f32) {
        (true, y) if y.is_finite() => format!("{y:?}f"),
        (true, y) => format!("__int_as_float({:#x})", y.to_bits()),
        (false, _) if x.is_finite() => format!("{x:?}"),
        (false, _) => format!("__longlong_as_double({:#x}LL)", x.to_bits()),
    }
}

#[cfg(test)]
mod tests {
    use super::literal;

    #[test]
    fn numbers_without_digits_are_bits() {
        assert_eq!(literal(f64::INFINITY, false), "__longlong_as_double(0x7ff0000000000000LL)");
        assert_eq!(literal(1e300, true), "__int_as_float(0x7f800000)");
        assert_eq!(literal(1e20, true), "1e20f");
    }
}
