//! The recorder: a kernel that runs once over [`Recorded`] leaves a [`Tape`] of its operations.
//!
//! Recording unrolls loops over components and helper functions. It simplifies: equal subexpressions are recorded
//! once, operations on constants are carried out, products with 0 and 1 and sums with 0 vanish (so derivatives of
//! constants cost nothing), and operations on which no value depends are dropped. Simplification assumes x·0 = 0 for
//! every x; a kernel whose intermediate results overflow may differ there.

use crate::kernel::{Kernel, MAX_PARAMETERS, MAX_STRENGTHS};
use crate::lane::Lane;
use crate::tape::{Node, Op, Tape};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Neg, Not, Sub};

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
    /// `Div`, y and c of √y/c; `Mul`, y and c of c·√y.
    fn scaled_root(&self, at: u32) -> Option<(Op, u32, u32)> {
        let Node { op, args: [a, b, _] } = self.nodes[at as usize];
        let root = |x: u32| (self.nodes[x as usize].op == Op::Sqrt).then(|| self.nodes[x as usize].args[0]);
        match op {
            Op::Div => Some((op, root(a)?, b)),
            Op::Mul => root(a).map(|y| (op, y, b)).or_else(|| root(b).map(|y| (op, y, a))),
            _ => None,
        }
    }
    /// The factor of c·(d·x) = (c·d)·x and x, where c or d is a power of two, so that nothing is rounded.
    fn scaled_twice(&self, a: u32, b: u32) -> Option<(f64, u32)> {
        let Node { op, args: [d, x, _] } = self.nodes[b as usize];
        let ((d, x), true) = (if self.value(d).is_some() { (d, x) } else { (x, d) }, op == Op::Mul) else {
            return None;
        };
        let (c, d) = (self.value(a)?, self.value(d)?);
        let is_power = |x: f64| x.is_normal() && x.to_bits() << 12 == 0;
        ((is_power(c) || is_power(d)) && (c * d).is_normal()).then_some((c * d, x))
    }
    fn both(&self, op: Op, a: u32, b: u32) -> bool {
        self.nodes[a as usize].op == op && self.nodes[b as usize].op == op
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
            let folded: f64 = op.apply(std::array::from_fn(|i| known.get(i).copied().unwrap_or(0.0)));
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
            Op::Mul if a == b && self.nodes[a as usize].op == Op::Sqrt => Some(self.nodes[a as usize].args[0]),
            // (√y/c)² and (c·√y)².
            Op::Mul
                if a == b
                    && let Some((op, y, c)) = self.scaled_root(a) =>
            {
                let c = self.push(Op::Mul, [c, c, 0]);
                Some(self.push(op, [y, c, 0]))
            }
            Op::Mul if let Some((product, x)) = self.scaled_twice(a, b).or_else(|| self.scaled_twice(b, a)) => {
                let factor = self.constant(product);
                Some(self.push(Op::Mul, [factor, x, 0]))
            }
            Op::Mul if self.both(Op::Neg, a, b) => {
                let [a, b] = [a, b].map(|x| self.nodes[x as usize].args[0]);
                Some(self.push(Op::Mul, [a, b, 0]))
            }
            Op::Fma if self.both(Op::Neg, a, b) => {
                let [a, b] = [a, b].map(|x| self.nodes[x as usize].args[0]);
                Some(self.push(Op::Fma, [a, b, c]))
            }
            _ => None,
        }
    }
}

thread_local! {
    static RECORDER: RefCell<Recorder> = RefCell::default();
}

#[inline]
fn push<const N: usize>(op: Op, args: [u32; N]) -> u32 {
    push_all(op, std::array::from_fn(|i| args.get(i).copied().unwrap_or(0)))
}

/// Not inlined: otherwise a search of the tape would be compiled for each operation of a kernel.
#[inline(never)]
fn push_all(op: Op, args: [u32; 3]) -> u32 {
    RECORDER.with_borrow_mut(|r| r.push(op, args))
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
    type Derivative = Self;
    type Mask = RecordedMask;
    fn splat(x: f64) -> Self {
        Recorded(push(Op::Constant(x.to_bits()), []))
    }
    fn mul_add(self, a: Self, b: Self) -> Self {
        Recorded(push(Op::Fma, [self.0, a.0, b.0]))
    }
    functions!(sqrt Sqrt, rsqrt Rsqrt, exp Exp, ln Ln, sin Sin, cos Cos, erf Erf, bessel_k0 BesselK0, bessel_k1 BesselK1);
    comparisons!(lt Lt, le Le, eq Eq);
    fn select(mask: RecordedMask, a: Self, b: Self) -> Self {
        Recorded(push(Op::Select, [mask.0, a.0, b.0]))
    }
}

/// Runs `kernel` over recorded inputs: parameters, `dimension` coordinates and `strengths`. The result of `kernel` are
/// its values. An error of `kernel` is passed on.
pub(crate) fn record_with<E>(
    dimension: usize,
    kernel: impl FnOnce(&[Recorded], &[Recorded], &[Recorded]) -> Result<Vec<Recorded>, E>,
) -> Result<Tape, E> {
    let (outer, inputs) = begin();
    let (params, others) = inputs.split_at(MAX_PARAMETERS);
    let (r, strengths) = others.split_at(3);
    let values = kernel(params, &r[..dimension], strengths);
    let nodes = RECORDER.replace(outer).nodes;
    Ok(end(dimension, nodes, &values?))
}

/// Begins a tape with all parameters, three coordinates and all strengths. The first result is the tape that was being
/// recorded: a kernel may be recorded while another is.
fn begin() -> (Recorder, Vec<Recorded>) {
    let outer = RECORDER.take();
    let inputs = (0..MAX_PARAMETERS).map(Op::Parameter).chain((0..3).map(Op::Coordinate));
    let inputs = inputs.chain((0..MAX_STRENGTHS).map(Op::Strength)).map(|op| Recorded(push(op, []))).collect();
    (outer, inputs)
}

fn end(dimension: usize, nodes: Vec<Node>, values: &[Recorded]) -> Tape {
    Tape::new(dimension, nodes, values.iter().map(|v| v.0).collect())
}

/// Records [`Kernel::eval`] of `K`, as a function of three coordinates. A kernel of the plane leaves the third alone.
/// Wrap `K` in [`Gradient`](crate::Gradient) or [`Hessian`](crate::Hessian) for its derivatives.
#[inline(never)]
pub fn record<K: Kernel>() -> Tape {
    let kernel = |params: &[Recorded], r: &[Recorded], strengths: &[Recorded]| {
        let mut values = vec![Recorded::splat(0.0); K::VALUES];
        K::eval(params, &r[..K::DIM], &strengths[..K::STRENGTHS], &mut values);
        Ok::<_, std::convert::Infallible>(values)
    };
    match record_with(3, kernel) {
        Ok(tape) => tape,
    }
}

macro_rules! with_constants {
    ($($trait:ident $method:ident),*) => {$(
        impl $trait<f64> for Recorded {
            type Output = Recorded;
            fn $method(self, x: f64) -> Recorded {
                $trait::$method(self, Recorded::splat(x))
            }
        }
        impl $trait<Recorded> for f64 {
            type Output = Recorded;
            fn $method(self, x: Recorded) -> Recorded {
                $trait::$method(Recorded::splat(self), x)
            }
        }
    )*};
}
with_constants!(Add add, Sub sub, Mul mul, Div div);

/// Number of operations on the tape of this thread.
pub(crate) fn operations() -> usize {
    RECORDER.with_borrow(|r| r.nodes.len())
}

/// `tape` with quotients by √b, and by powers of it, as products with 1/√b. The same for b > 0, faster, and 0 at b = 0.
pub(crate) fn with_reciprocal_roots(tape: &Tape) -> Tape {
    let outer = RECORDER.take();
    let mut moved: Vec<u32> = Vec::new();
    let mut inverter = Inverter::default();
    for node in tape.nodes() {
        let args = node.args.map(|a| moved.get(a as usize).copied().unwrap_or(0));
        let inverse = if node.op == Op::Div { inverter.inverse(args[1], 0) } else { None };
        moved.push(match inverse {
            Some(inverse) => push(Op::Mul, [args[0], inverse]),
            None => push(node.op, args),
        });
        if node.op == Op::Sqrt && is_square(args[0], tape.dimension()) {
            inverter.square = Some(args[0]);
        }
    }
    let nodes = RECORDER.replace(outer).nodes;
    Tape::new(tape.dimension(), nodes, tape.values().iter().map(|&v| moved[v as usize]).collect())
}

/// Whether a node is r·r: the sum of the squares of the coordinates, or the coordinate of a function of r².
fn is_square(at: u32, dimension: usize) -> bool {
    let node = |at: u32| RECORDER.with_borrow(|r| r.nodes[at as usize]);
    let axis = |Node { args: [a, b, _], .. }: Node| match node(a).op {
        Op::Coordinate(axis) if a == b => Some(axis),
        _ => None,
    };
    if dimension == 1 {
        return node(at).op == Op::Coordinate(0);
    }
    let first = node(at);
    let second = node(first.args[2]);
    let third = node(second.args[2]);
    let all = [axis(first), axis(second), axis(third)];
    [first.op, second.op, third.op] == [Op::Fma, Op::Fma, Op::Mul] && (0..3).all(|k| all.contains(&Some(k)))
}

/// Products inside each other up to which inverses are looked for.
const MAX_PRODUCTS: usize = 64;

/// Inverses of the nodes on the tape by reciprocal roots.
#[derive(Default)]
struct Inverter {
    /// r·r, if its root was taken.
    square: Option<u32>,
    /// Whether each node depends on parameters and constants alone.
    uniform: Vec<bool>,
    /// The inverses found so far.
    known: HashMap<u32, Option<u32>>,
}

impl Inverter {
    fn is_uniform(&mut self, at: u32) -> bool {
        RECORDER.with_borrow(|r| {
            for Node { op, args } in &r.nodes[self.uniform.len()..] {
                let input = matches!(op, Op::Coordinate(_) | Op::Strength(_));
                let all = args[..op.arity()].iter().all(|&a| self.uniform[a as usize]);
                self.uniform.push(!input && all);
            }
        });
        self.uniform[at as usize]
    }

    /// The inverse of a node. `None` if it is not a product of roots, of r·r, and of numbers that are the same for all
    /// pairs.
    fn inverse(&mut self, at: u32, depth: usize) -> Option<u32> {
        if let Some(known) = self.known.get(&at) {
            return *known;
        }
        let Node { op, args: [a, b, _] } = RECORDER.with_borrow(|r| r.nodes[at as usize]);
        let found = match op {
            _ if self.is_uniform(at) || depth > MAX_PRODUCTS => None,
            Op::Sqrt => Some(push(Op::Rsqrt, [a])),
            _ if self.square == Some(at) => {
                let root = push(Op::Rsqrt, [at]);
                Some(push(Op::Mul, [root, root]))
            }
            Op::Mul => self.factor(a, depth).and_then(|a| self.factor(b, depth).map(|b| push(Op::Mul, [a, b]))),
            _ => None,
        };
        self.known.insert(at, found);
        found
    }

    /// The inverse of a factor, which may be the same for all pairs.
    fn factor(&mut self, at: u32, depth: usize) -> Option<u32> {
        if !self.is_uniform(at) {
            return self.inverse(at, depth + 1);
        }
        let one = push(Op::Constant(1f64.to_bits()), []);
        Some(push(Op::Div, [one, at]))
    }
}

impl Recorded {
    /// A coordinate of the tape that is being recorded.
    pub(crate) fn coordinate(axis: usize) -> Self {
        Recorded(push(Op::Coordinate(axis), []))
    }
    /// The constant that this number is known to be.
    pub fn known(self) -> Option<f64> {
        RECORDER.with_borrow(|r| r.value(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Gradient, MAX_COMPONENTS, gradient_by_dual};
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

    /// x·y/|r|² and x − y, zero at r = 0.
    #[derive(Clone, Debug)]
    struct Plane;
    impl Kernel for Plane {
        const NAME: &'static str = "plane";
        const DIM: usize = 2;
        const VALUES: usize = 2;
        fn eval<V: Lane>(_: &[V], r: &[V], q: &[V], u: &mut [V]) {
            let w = V::splat(1.0) / V::nonzero_square(r);
            u[0] = -(q[0] * r[0]).mul_add(w, r[1] * w);
            u[1] = r[0] - r[1];
        }
        fn value_degree(_: usize) -> i32 {
            0
        }
    }

    #[test]
    fn values_are_added_by_fused_multiply_adds() {
        let text = record::<Plane>().with_values(&[1, 0]).cuda_adding::<f64>("f", "inverse");
        let sums: Vec<&str> = text.lines().filter(|line| line.contains("  u[")).collect();
        assert!(sums[0].contains("u[0] = (u[0] + t"), "{text}");
        assert!(sums[1].contains("u[1] = fma(-t") && sums[1].matches("fma(-t").count() == 2, "{text}");
        assert!(text.contains("is_zero(t") && text.contains("inverse(t") && !text.contains(" / "), "{text}");
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
