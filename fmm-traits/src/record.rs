//! The recorder: a kernel that runs once over [`Recorded`] leaves a [`Tape`] of its operations. A tape can be printed
//! as straight-line CUDA C, or interpreted.
//!
//! Recording unrolls loops over components and helper functions. It simplifies: equal subexpressions are recorded
//! once, operations on constants are carried out, products with 0 and 1 and sums with 0 vanish (so derivatives of
//! constants cost nothing), and operations on which no value depends are dropped. Simplification assumes x·0 = 0 for
//! every x; a kernel whose intermediate results overflow may differ there.
//!
//! These are all operations. In single precision the CUDA functions end in `f`:
//!
//! | lane | CUDA C | flops |
//! |---|---|---|
//! | `a + b`, `a - b`, `a * b`, `a / b` | the same | 1 |
//! | `-a` | `-a` | 0 |
//! | `a.mul_add(b, c)` | `fma(a, b, c)` | 2 |
//! | `sqrt`, `exp`, `ln`, `sin`, `cos` | `sqrt`, `exp`, `log`, `sin`, `cos` | 1 |
//! | `rsqrt` | `a == 0 ? 0 : rsqrt(a)` | 1 |
//! | `lt`, `le`, `eq` | `a < b`, `a <= b`, `a == b` | 0 |
//! | `&`, `\|`, `!` of masks | `a && b`, `a \|\| b`, `!a` | 0 |
//! | `select(m, a, b)` | `m ? a : b` | 0 |

use crate::kernel::{Kernel, MAX_COMPONENTS, MAX_PARAMETERS, MAX_STRENGTHS};
use crate::lane::{Lane, Real};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Write;
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Neg, Not, Sub};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Op {
    Parameter(usize),
    Coordinate(usize),
    Strength(usize),
    /// Bits of an f64.
    Constant(u64),
    Add,
    Sub,
    Mul,
    Div,
    Neg,
    Fma,
    Sqrt,
    Rsqrt,
    Exp,
    Ln,
    Sin,
    Cos,
    Lt,
    Le,
    Eq,
    And,
    Or,
    Not,
    Select,
}

impl Op {
    fn arity(self) -> usize {
        use Op::*;
        match self {
            Parameter(_) | Coordinate(_) | Strength(_) | Constant(_) => 0,
            Neg | Sqrt | Rsqrt | Exp | Ln | Sin | Cos | Not => 1,
            Add | Sub | Mul | Div | Lt | Le | Eq | And | Or => 2,
            Fma | Select => 3,
        }
    }
    /// Whether the first two arguments may be exchanged.
    fn commutes(self) -> bool {
        matches!(self, Op::Add | Op::Mul | Op::Fma | Op::Eq | Op::And | Op::Or)
    }
    fn is_mask(self) -> bool {
        matches!(self, Op::Lt | Op::Le | Op::Eq | Op::And | Op::Or | Op::Not)
    }
    fn flops(self) -> usize {
        match self {
            Op::Fma => 2,
            Op::Neg | Op::Select => 0,
            _ if self.arity() == 0 || self.is_mask() => 0,
            _ => 1,
        }
    }
    /// Applies the operation to numbers. Masks are 0 and 1. It is never called for inputs and constants.
    fn apply<T: Real>(self, [a, b, c]: [T; 3]) -> T {
        let flag = |m: bool| T::of(if m { 1.0 } else { 0.0 });
        let set = |x: T| x != T::of(0.0);
        match self {
            Op::Add => a + b,
            Op::Sub => a - b,
            Op::Mul => a * b,
            Op::Div => a / b,
            Op::Neg => -a,
            Op::Fma => a.mul_add(b, c),
            Op::Sqrt => a.sqrt(),
            Op::Rsqrt => a.rsqrt(),
            Op::Exp => a.exp(),
            Op::Ln => a.ln(),
            Op::Sin => a.sin(),
            Op::Cos => a.cos(),
            Op::Lt => flag(a < b),
            Op::Le => flag(a <= b),
            Op::Eq => flag(a == b),
            Op::And => flag(set(a) && set(b)),
            Op::Or => flag(set(a) || set(b)),
            Op::Not => flag(!set(a)),
            Op::Select if set(a) => b,
            Op::Select => c,
            Op::Parameter(_) | Op::Coordinate(_) | Op::Strength(_) | Op::Constant(_) => a,
        }
    }
}

/// One operation. Its arguments are indices of earlier nodes; unused arguments are 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Node {
    op: Op,
    args: [u32; 3],
}

/// The tape being recorded on this thread.
#[derive(Default)]
struct Recorder {
    nodes: Vec<Node>,
    seen: HashMap<Node, u32>,
}

impl Recorder {
    fn push(&mut self, op: Op, mut args: [u32; 3]) -> u32 {
        if op.commutes() && args[0] > args[1] {
            args.swap(0, 1);
        }
        if let Some(simpler) = self.simplify(op, args) {
            return simpler;
        }
        let node = Node { op, args };
        *self.seen.entry(node).or_insert_with(|| {
            self.nodes.push(node);
            self.nodes.len() as u32 - 1
        })
    }
    fn constant(&mut self, x: f64) -> u32 {
        self.push(Op::Constant(x.to_bits()), [0; 3])
    }
    fn value(&self, at: u32) -> Option<f64> {
        match self.nodes[at as usize].op {
            Op::Constant(bits) => Some(f64::from_bits(bits)),
            _ => None,
        }
    }
    fn simplify(&mut self, op: Op, [a, b, c]: [u32; 3]) -> Option<u32> {
        let n = op.arity();
        if n == 0 || op.is_mask() {
            return None;
        }
        if op == Op::Select {
            return (b == c).then_some(b);
        }
        let known: Vec<f64> = [a, b, c][..n].iter().map_while(|&x| self.value(x)).collect();
        if known.len() == n {
            let folded = op.apply(std::array::from_fn(|i| known.get(i).copied().unwrap_or(0.0)));
            return Some(self.constant(folded));
        }
        let is = |s: &Self, at: u32, x: f64| s.value(at) == Some(x);
        match op {
            Op::Add if is(self, a, 0.0) => Some(b),
            Op::Add | Op::Sub if is(self, b, 0.0) => Some(a),
            Op::Sub if is(self, a, 0.0) => Some(self.push(Op::Neg, [b, 0, 0])),
            Op::Mul | Op::Div if is(self, a, 0.0) || is(self, b, 1.0) => Some(a),
            Op::Mul if is(self, b, 0.0) || is(self, a, 1.0) => Some(b),
            Op::Fma if is(self, a, 0.0) || is(self, b, 0.0) => Some(c),
            Op::Fma if is(self, a, 1.0) => Some(self.push(Op::Add, [b, c, 0])),
            Op::Fma if is(self, b, 1.0) => Some(self.push(Op::Add, [a, c, 0])),
            Op::Fma if is(self, c, 0.0) => Some(self.push(Op::Mul, [a, b, 0])),
            Op::Neg if self.nodes[a as usize].op == Op::Neg => Some(self.nodes[a as usize].args[0]),
            _ => None,
        }
    }
}

thread_local! {
    static RECORDER: RefCell<Recorder> = RefCell::default();
}

fn push<const N: usize>(op: Op, args: [u32; N]) -> u32 {
    let padded = std::array::from_fn(|i| args.get(i).copied().unwrap_or(0));
    RECORDER.with_borrow_mut(|r| r.push(op, padded))
}

/// A number on the tape of this thread; the [`Lane`] that [`record`] hands to a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Recorded(u32);
/// The result of a comparison on the tape.
#[derive(Clone, Copy, Debug)]
pub struct RecordedMask(u32);

macro_rules! binary {
    ($($type:ident $trait:ident $method:ident $op:ident),*) => {$(
        impl $trait for $type {
            type Output = Self;
            fn $method(self, o: Self) -> Self {
                $type(push(Op::$op, [self.0, o.0]))
            }
        }
    )*};
}
binary!(Recorded Add add Add, Recorded Sub sub Sub, Recorded Mul mul Mul, Recorded Div div Div);
binary!(RecordedMask BitAnd bitand And, RecordedMask BitOr bitor Or);

impl Neg for Recorded {
    type Output = Self;
    fn neg(self) -> Self {
        Recorded(push(Op::Neg, [self.0]))
    }
}
impl Not for RecordedMask {
    type Output = Self;
    fn not(self) -> Self {
        RecordedMask(push(Op::Not, [self.0]))
    }
}

macro_rules! functions {
    ($($method:ident $op:ident),*) => {$(
        fn $method(self) -> Self {
            Recorded(push(Op::$op, [self.0]))
        }
    )*};
}
macro_rules! comparisons {
    ($($method:ident $op:ident),*) => {$(
        fn $method(self, other: Self) -> RecordedMask {
            RecordedMask(push(Op::$op, [self.0, other.0]))
        }
    )*};
}

impl Lane for Recorded {
    type Mask = RecordedMask;
    fn splat(x: f64) -> Self {
        Recorded(push(Op::Constant(x.to_bits()), []))
    }
    fn mul_add(self, a: Self, b: Self) -> Self {
        Recorded(push(Op::Fma, [self.0, a.0, b.0]))
    }
    functions!(sqrt Sqrt, rsqrt Rsqrt, exp Exp, ln Ln, sin Sin, cos Cos);
    comparisons!(lt Lt, le Le, eq Eq);
    fn select(mask: RecordedMask, a: Self, b: Self) -> Self {
        Recorded(push(Op::Select, [mask.0, a.0, b.0]))
    }
}

/// A kernel as a list of operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tape {
    dimension: usize,
    nodes: Vec<Node>,
    /// Node of each value.
    values: Vec<u32>,
}

/// Records [`Kernel::eval`] of `K`. Wrap `K` in [`Gradient`](crate::Gradient) or
/// [`Hessian`](crate::Hessian) for its derivatives.
pub fn record<K: Kernel>() -> Tape {
    fn inputs<const N: usize>(of: fn(usize) -> Op) -> [Recorded; N] {
        std::array::from_fn(|i| Recorded(push(of(i), [])))
    }
    RECORDER.take();
    let params: [Recorded; MAX_PARAMETERS] = inputs(Op::Parameter);
    let r: [Recorded; 3] = inputs(Op::Coordinate);
    let strengths: [Recorded; MAX_STRENGTHS] = inputs(Op::Strength);
    let mut values = [Recorded::splat(0.0); MAX_COMPONENTS];
    K::eval(&params, &r[..K::DIM], &strengths[..K::STRENGTHS], &mut values[..K::VALUES]);
    let nodes = RECORDER.take().nodes;
    let values = values[..K::VALUES].iter().map(|v| v.0).collect();
    Tape { dimension: K::DIM, nodes, values }.without_dead_code()
}

impl Tape {
    fn without_dead_code(self) -> Tape {
        let mut live = vec![false; self.nodes.len()];
        self.values.iter().for_each(|&v| live[v as usize] = true);
        for (i, node) in self.nodes.iter().enumerate().rev() {
            if live[i] {
                node.args[..node.op.arity()].iter().for_each(|&a| live[a as usize] = true);
            }
        }
        let mut moved = vec![0; self.nodes.len()];
        let mut nodes = Vec::new();
        for (i, mut node) in self.nodes.into_iter().enumerate().filter(|(i, _)| live[*i]) {
            node.args[..node.op.arity()].iter_mut().for_each(|a| *a = moved[*a as usize]);
            moved[i] = nodes.len() as u32;
            nodes.push(node);
        }
        Tape { dimension: self.dimension, nodes, values: self.values.iter().map(|&v| moved[v as usize]).collect() }
    }

    /// Floating-point operations of one pair, counted as in the table of the module header.
    pub fn flops(&self) -> usize {
        self.nodes.iter().map(|n| n.op.flops()).sum()
    }

    /// Interprets the tape in precision `T`. Slices are as in [`Kernel::eval`]. Panics if a slice is shorter than the
    /// kernel needs.
    pub fn evaluate<T: Real>(&self, params: &[T], r: &[T], strengths: &[T], values: &mut [T]) {
        let mut computed: Vec<T> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            computed.push(match node.op {
                Op::Parameter(i) => params[i],
                Op::Coordinate(i) => r[i],
                Op::Strength(i) => strengths[i],
                Op::Constant(bits) => T::of(f64::from_bits(bits)),
                op => op.apply(node.args.map(|a| computed[a as usize])),
            });
        }
        for (value, &at) in values.iter_mut().zip(&self.values) {
            *value = computed[at as usize];
        }
    }

    /// Whether the test for r = 0 may be dropped, because an infinite 1/√0 always shows in the values. This holds if,
    /// for each reciprocal root, no value depends on it, or at least one value cannot be finite when the root is not.
    ///
    /// Sums, products, dividends, roots, logarithms, sines and cosines of a number that is not finite are not finite.
    /// Divisors, exponentials and branches may hide it.
    pub fn shows_zero_root(&self) -> bool {
        let roots = self.nodes.iter().enumerate().filter(|(_, n)| n.op == Op::Rsqrt);
        roots.into_iter().all(|(root, _)| {
            let (mut depends, mut shows) = (vec![false; self.nodes.len()], vec![false; self.nodes.len()]);
            (depends[root], shows[root]) = (true, true);
            for (i, node) in self.nodes.iter().enumerate().skip(root + 1) {
                let args = &node.args[..node.op.arity()];
                let any = |of: &[bool], args: &[u32]| args.iter().any(|&a| of[a as usize]);
                depends[i] = any(&depends, args);
                shows[i] = match node.op {
                    Op::Add | Op::Sub | Op::Mul | Op::Neg | Op::Fma | Op::Sqrt | Op::Ln | Op::Sin | Op::Cos => {
                        any(&shows, args)
                    }
                    Op::Div => shows[args[0] as usize],
                    _ => false,
                };
            }
            let among = |of: &[bool]| self.values.iter().any(|&v| of[v as usize]);
            among(&shows) || !among(&depends)
        })
    }

    /// The tape as CUDA C in precision `T`:
    /// `void NAME(const T* params, T rx, T ry, T rz, const T* q, T* u)`, `u` overwritten.
    pub fn cuda<T: Real>(&self, name: &str) -> String {
        self.print::<T>(name, None)
    }

    /// As [`cuda`](Tape::cuda), with the device function `rsqrt` for reciprocal roots and no test
    /// for 0: see [`shows_zero_root`](Tape::shows_zero_root).
    pub fn cuda_unguarded<T: Real>(&self, name: &str, rsqrt: &str) -> String {
        self.print::<T>(name, Some(rsqrt))
    }

    fn print<T: Real>(&self, name: &str, unguarded: Option<&str>) -> String {
        let single = T::NAME == "f32";
        let (real, suffix) = if single { ("float", "f") } else { ("double", "") };
        let axes = &["rx", "ry", "rz"][..self.dimension];
        let r: String = axes.iter().map(|axis| format!("{real} {axis}, ")).collect();
        let mut out =
            format!("__device__ __forceinline__ void {name}(const {real}* params, {r}const {real}* q, {real}* u) {{\n");
        for (i, node) in self.nodes.iter().enumerate() {
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
                Op::Div => infix("/"),
                Op::Neg => format!("-{a}"),
                Op::Fma => format!("fma{suffix}({a}, {b}, {c})"),
                Op::Sqrt => call("sqrt"),
                Op::Rsqrt => match unguarded {
                    Some(rsqrt) => format!("{rsqrt}({a})"),
                    None => format!("{a} == 0 ? 0 : {}", call("rsqrt")),
                },
                Op::Exp => call("exp"),
                Op::Ln => call("log"),
                Op::Sin => call("sin"),
                Op::Cos => call("cos"),
                Op::Lt => infix("<"),
                Op::Le => infix("<="),
                Op::Eq => infix("=="),
                Op::And => infix("&&"),
                Op::Or => infix("||"),
                Op::Not => format!("!{a}"),
                Op::Select => format!("{a} ? {b} : {c}"),
            };
            let of = if node.op.is_mask() { "bool" } else { real };
            // Writing to a String cannot fail.
            let _ = writeln!(out, "  const {of} t{i} = {expression};");
        }
        for (i, v) in self.values.iter().enumerate() {
            let _ = writeln!(out, "  u[{i}] = t{v};");
        }
        out + "}\n"
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
    use super::*;
    use crate::kernel::{Gradient, gradient_by_dual};
    use crate::lane::dot;

    /// Uses every operation of the set.
    #[derive(Clone, Debug)]
    struct Everything;
    impl Kernel for Everything {
        const NAME: &'static str = "everything";
        const STRENGTHS: usize = 2;
        const VALUES: usize = 2;
        fn eval<V: Lane>(p: &[V], r: &[V], q: &[V], u: &mut [V]) {
            let r2 = dot(r, r);
            let near = (r2.le(V::splat(1.0)) | r[0].lt(r[1])) & !r[2].eq(V::splat(0.25));
            u[0] = V::select(near, r2.sqrt().ln() - p[0], (-r2).exp() / (p[1] + r2.rsqrt()));
            u[1] = q[0] * r[0].sin() - q[1] * r[1].cos() * u[0];
        }
        fn value_degree(_: usize) -> i32 {
            0
        }
    }

    fn agree<K: Kernel>(r: [f64; 3]) {
        let (params, strengths) = ([0.3, 1.7], [0.9, -0.4]);
        let (mut direct, mut taped) = ([0.0; MAX_COMPONENTS], [0.0; MAX_COMPONENTS]);
        K::eval(&params, &r, &strengths, &mut direct[..K::VALUES]);
        record::<K>().evaluate(&params, &r, &strengths, &mut taped[..K::VALUES]);
        for i in 0..K::VALUES {
            assert!((direct[i] - taped[i]).abs() <= 1e-14 * (1.0 + direct[i].abs()), "{i}: {direct:?} {taped:?}");
        }
    }

    #[test]
    fn a_tape_computes_what_was_recorded() {
        for r in [[0.1, 0.2, 0.3], [0.9, 0.2, 0.25], [1.5, -2.0, 0.7], [-2.0, 1.0, 0.5]] {
            agree::<Everything>(r);
            agree::<Gradient<Everything>>(r);
        }
    }

    #[test]
    fn every_operation_prints() {
        let double = record::<Everything>().cuda::<f64>("f");
        for text in [
            "void f(const double* params, double rx, double ry, double rz, const double* q, double* u)",
            "sqrt(",
            "== 0 ? 0 : rsqrt(",
            "log(",
            "exp(",
            "sin(",
            "cos(",
            "fma(",
            " <= ",
            " < ",
            " && ",
            " || ",
            "!t",
            "const bool",
            " / ",
            " - ",
            " + ",
            " * ",
            "= 0.25;",
            "u[1] = t",
        ] {
            assert!(double.contains(text), "{text:?} is missing in\n{double}");
        }
        let single = record::<Everything>().cuda::<f32>("f");
        for text in ["sqrtf(", "rsqrtf(", "logf(", "expf(", "sinf(", "cosf(", "fmaf(", "= 0.25f;", "float rx"] {
            assert!(single.contains(text), "{text:?} is missing in\n{single}");
        }
        assert_eq!(literal(f64::INFINITY, false), "__longlong_as_double(0x7ff0000000000000LL)");
        assert_eq!(literal(1e300, true), "__int_as_float(0x7f800000)");
        assert_eq!(literal(1e20, true), "1e20f");
    }

    /// q·(r·r), its gradient by duals in full.
    #[derive(Clone, Debug)]
    struct Square;
    impl Kernel for Square {
        const NAME: &'static str = "square";
        const SINGULAR: bool = false;
        fn eval<V: Lane>(_: &[V], r: &[V], q: &[V], u: &mut [V]) {
            u[0] = q[0] * (dot(r, r) + V::splat(0.5) * dot(r, r) - V::splat(2.0) * V::splat(0.25) * dot(r, r));
        }
        fn eval_gradient<V: Lane>(p: &[V], r: &[V], q: &[V], out: &mut [V]) {
            gradient_by_dual::<Self, V>(p, r, q, out);
        }
        fn value_degree(_: usize) -> i32 {
            2
        }
    }

    /// q/r, its gradient by duals.
    #[derive(Clone, Debug)]
    struct Inverse;
    impl Kernel for Inverse {
        const NAME: &'static str = "inverse";
        fn eval<V: Lane>(_: &[V], r: &[V], q: &[V], u: &mut [V]) {
            u[0] = q[0] * dot(r, r).rsqrt();
        }
        fn value_degree(_: usize) -> i32 {
            -1
        }
    }

    #[test]
    fn a_zero_root_shows_unless_it_can_hide() {
        assert!(record::<Inverse>().shows_zero_root());
        assert!(record::<Gradient<Inverse>>().shows_zero_root());
        assert!(record::<Square>().shows_zero_root(), "there is no root");
        assert!(!record::<Everything>().shows_zero_root(), "behind a divisor and a branch");
        let text = record::<Gradient<Inverse>>().cuda_unguarded::<f32>("f", "fast");
        assert!(text.contains("= fast(t") && !text.contains("== 0"), "{text}");
    }

    #[test]
    fn common_work_is_recorded_once() {
        // r·r is 1 + 2 + 2; +, − and three products remain (0.5·r² is shared by + and −).
        assert_eq!(record::<Square>().flops(), 5 + 2 + 2);
        // Derivatives of r·r and of the constants leave at most a few operations each.
        assert!(record::<Gradient<Square>>().flops() <= 9 + 3 * 6, "{}", record::<Gradient<Square>>().flops());
        agree::<Gradient<Square>>([0.4, -0.5, 0.6]);
    }
}
