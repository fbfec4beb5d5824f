//! A kernel as a list of operations, a [`Tape`]: recorded from Rust ([`record`](mod@crate::record)) or read from text
//! ([`traced`](crate::traced)). A tape can be carried out over any [`Lane`] (which differentiates it, or records it
//! anew), analysed, and printed as text or CUDA C.
//!
//! These are all operations on numbers; inputs and constants cost nothing. In single precision the CUDA functions end
//! in `f`:
//!
//! | lane | CUDA C | flops |
//! |---|---|---|
//! | `a + b`, `a - b`, `a * b`, `a / b` | the same | 1 |
//! | `-a` | `-a` | 0 |
//! | `a.mul_add(b, c)` | `fma(a, b, c)` | 2 |
//! | `sqrt`, `exp`, `ln`, `sin`, `cos`, `erf` | `sqrt`, `exp`, `log`, `sin`, `cos`, `erf` | 1 |
//! | `rsqrt` | `a == 0 ? 0 : rsqrt(a)` | 1 |
//! | `lt`, `le`, `eq` | `a < b`, `a <= b`, `a == b` | 0 |
//! | `&`, `\|`, `!` of masks | `a && b`, `a \|\| b`, `!a` | 0 |
//! | `select(m, a, b)` | `m ? a : b` | 0 |

mod cuda;
mod degrees;
mod text;

pub use degrees::Degrees;

use crate::lane::Lane;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Number of operations up to which a tape is carried out without an allocation.
const SHORT: usize = 48;
/// Pairs that [`Tape::evaluate_many`] computes at a time: the results of a hundred operations stay in the first-level
/// cache.
const BATCH: usize = 32;

/// What an operation does with its arguments a, b, c.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// A parameter of the kernel.
    Parameter(usize),
    /// A coordinate of r, target − source.
    Coordinate(usize),
    /// A strength of the source.
    Strength(usize),
    /// Bits of an f64.
    Constant(u64),
    /// a + b.
    Add,
    /// a − b.
    Sub,
    /// a·b.
    Mul,
    /// a/b.
    Div,
    /// −a.
    Neg,
    /// a·b + c.
    Fma,
    /// √a.
    Sqrt,
    /// 1/√a; 0 at a = 0.
    Rsqrt,
    /// e^a.
    Exp,
    /// ln a.
    Ln,
    /// sin a.
    Sin,
    /// cos a.
    Cos,
    /// The error function of a.
    Erf,
    /// The modified Bessel function K₀ of a.
    BesselK0,
    /// The modified Bessel function K₁ of a.
    BesselK1,
    /// a < b.
    Lt,
    /// a ≤ b.
    Le,
    /// a = b.
    Eq,
    /// a and b.
    And,
    /// a or b.
    Or,
    /// Not a.
    Not,
    /// b if a, else c.
    Select,
}

impl Op {
    /// Number of arguments.
    pub fn arity(self) -> usize {
        use Op::*;
        match self {
            Parameter(_) | Coordinate(_) | Strength(_) | Constant(_) => 0,
            Neg | Sqrt | Rsqrt | Exp | Ln | Sin | Cos | Erf | BesselK0 | BesselK1 | Not => 1,
            Add | Sub | Mul | Div | Lt | Le | Eq | And | Or => 2,
            Fma | Select => 3,
        }
    }
    /// Whether the first two arguments may be exchanged.
    pub fn commutes(self) -> bool {
        matches!(self, Op::Add | Op::Mul | Op::Fma | Op::Eq | Op::And | Op::Or)
    }
    /// The functions of one number other than roots. Some processors call a library for them.
    pub const FUNCTIONS: [Op; 7] = [Op::Exp, Op::Ln, Op::Sin, Op::Cos, Op::Erf, Op::BesselK0, Op::BesselK1];
    /// Whether this is one of the [`FUNCTIONS`](Self::FUNCTIONS).
    pub fn is_function(self) -> bool {
        Op::FUNCTIONS.contains(&self)
    }
    /// Whether the result is true or false.
    pub fn is_mask(self) -> bool {
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
    /// Applies an operation on numbers. It is never called for inputs, constants, masks and selections.
    pub(crate) fn apply<V: Lane>(self, [a, b, c]: [V; 3]) -> V {
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
            Op::Erf => a.erf(),
            Op::BesselK0 => a.bessel_k0(),
            Op::BesselK1 => a.bessel_k1(),
            _ => a,
        }
    }
}

/// One operation of a [`Tape`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    /// The operation.
    pub op: Op,
    /// Indices of earlier nodes; unused arguments are 0.
    pub args: [u32; 3],
}

/// A kernel as a list of operations.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tape {
    dimension: usize,
    nodes: Vec<Node>,
    /// Node of each value.
    values: Vec<u32>,
}

impl Tape {
    /// The tape with some of its values, in another order.
    pub fn with_values(&self, values: &[usize]) -> Tape {
        Tape::new(self.dimension, self.nodes.clone(), values.iter().map(|&i| self.values[i]).collect())
    }
    /// A tape of the operations on which a value depends, in an order that depends on nothing else: equal operations
    /// give equal tapes.
    pub(crate) fn new(dimension: usize, nodes: Vec<Node>, values: Vec<u32>) -> Tape {
        // A number of each node that depends on the operations alone.
        let mut marks: Vec<u64> = Vec::with_capacity(nodes.len());
        for node in &nodes {
            let mut args = node.args.map(|a| marks.get(a as usize).copied().unwrap_or(0));
            args[node.op.arity()..].fill(0);
            if node.op.commutes() {
                args[..2].sort_unstable();
            }
            let mut hasher = DefaultHasher::new();
            (node.op, args).hash(&mut hasher);
            marks.push(hasher.finish());
        }
        let mut moved: Vec<Option<u32>> = vec![None; nodes.len()];
        let mut ordered = Vec::new();
        let mut open: Vec<u32> = values.iter().rev().copied().collect();
        while let Some(&at) = open.last() {
            let Node { op, mut args } = nodes[at as usize];
            if op.commutes() && marks[args[0] as usize] > marks[args[1] as usize] {
                args.swap(0, 1);
            }
            let args = &mut args[..op.arity()];
            let first = args.iter().find(|&&a| moved[a as usize].is_none());
            if moved[at as usize].is_some() {
                open.pop();
            } else if let Some(&arg) = first {
                open.push(arg);
            } else {
                open.pop();
                let mut node = Node { op, args: [0; 3] };
                node.args.iter_mut().zip(args).for_each(|(to, a)| *to = moved[*a as usize].unwrap_or(0));
                moved[at as usize] = Some(ordered.len() as u32);
                ordered.push(node);
            }
        }
        let values = values.iter().map(|&v| moved[v as usize].unwrap_or(0)).collect();
        Tape { dimension, nodes: ordered, values }
    }

    /// Floating-point operations of one pair, counted as in the table of the module header.
    pub fn flops(&self) -> usize {
        self.nodes.iter().map(|n| n.op.flops()).sum()
    }

    /// The tape of other operations, as far as `values` depend on them.
    pub fn with_nodes(&self, nodes: Vec<Node>, values: Vec<u32>) -> Tape {
        Tape::new(self.dimension, nodes, values)
    }
    /// Number of coordinates.
    pub(crate) fn dimension(&self) -> usize {
        self.dimension
    }
    /// The operations, each after its arguments.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }
    /// The node of each value.
    pub fn values(&self) -> &[u32] {
        &self.values
    }
    /// Whether an operation satisfies `is`.
    pub fn any(&self, is: impl Fn(Op) -> bool) -> bool {
        self.nodes.iter().any(|n| is(n.op))
    }

    /// Carries out the operations over any [`Lane`]. Slices are as in [`Kernel::eval`](crate::Kernel::eval).
    ///
    /// # Panics
    /// If a slice is shorter than the operations need.
    pub fn evaluate<V: Lane>(&self, params: &[V], r: &[V], strengths: &[V], values: &mut [V]) {
        let zero = V::splat(0.0);
        // Tapes of most kernels are short, and need no allocation.
        let (mut few, mut many);
        let numbers: &mut [V] = match self.nodes.len() {
            n if n <= SHORT => {
                few = [zero; SHORT];
                &mut few[..n]
            }
            n => {
                many = vec![zero; n];
                &mut many
            }
        };
        let mut masks: Vec<V::Mask> = Vec::new();
        // Places of masks among the masks; as many as nodes up to the last mask.
        let mut places: Vec<usize> = Vec::new();
        for (i, node) in self.nodes.iter().enumerate() {
            let arg = |k: usize| node.args[k] as usize;
            if node.op.is_mask() {
                let mask = |k: usize| masks[places[arg(k)]];
                let found = match node.op {
                    Op::Lt => numbers[arg(0)].lt(numbers[arg(1)]),
                    Op::Le => numbers[arg(0)].le(numbers[arg(1)]),
                    Op::Eq => numbers[arg(0)].eq(numbers[arg(1)]),
                    Op::And => mask(0) & mask(1),
                    Op::Or => mask(0) | mask(1),
                    _ => !mask(0),
                };
                places.resize(i, 0);
                places.push(masks.len());
                masks.push(found);
                numbers[i] = V::select(found, V::splat(1.0), zero);
                continue;
            }
            numbers[i] = match node.op {
                Op::Parameter(k) => params[k],
                Op::Coordinate(k) => r[k],
                Op::Strength(k) => strengths[k],
                Op::Constant(bits) => V::splat(f64::from_bits(bits)),
                Op::Select => V::select(masks[places[arg(0)]], numbers[arg(1)], numbers[arg(2)]),
                op => op.apply([0, 1, 2].map(|k| numbers[arg(k)])),
            };
        }
        for (value, &at) in values.iter_mut().zip(&self.values) {
            *value = numbers[at as usize];
        }
    }

    /// [`evaluate`](Tape::evaluate) in f64 at many r, for the same strengths: `out` has the values of r\[0\], of
    /// r\[1\], … Each operation runs over many pairs, which costs much less than one pair at a time.
    pub fn evaluate_many(&self, params: &[f64], r: &[[f64; 3]], strengths: &[f64], out: &mut [f64]) {
        let values = self.values.len();
        let mut results = vec![[0.0; BATCH]; self.nodes.len()];
        for (r, out) in r.chunks(BATCH).zip(out.chunks_mut(BATCH * values.max(1))) {
            for (i, node) in self.nodes.iter().enumerate() {
                let (before, rest) = results.split_at_mut(i);
                let [a, b, c] = [0, 1, 2].map(|k| before.get(node.args[k] as usize).unwrap_or(&[0.0; BATCH]));
                let to = &mut rest[0];
                let flag = |x: bool| f64::from(u8::from(x));
                macro_rules! each {
                    (|$a:ident, $b:ident, $c:ident| $result:expr) => {
                        for (k, to) in to.iter_mut().enumerate() {
                            let ($a, $b, $c) = (a[k], b[k], c[k]);
                            *to = $result;
                        }
                    };
                }
                match node.op {
                    Op::Parameter(p) => to.fill(params[p]),
                    Op::Coordinate(axis) => to.iter_mut().zip(r).for_each(|(to, r)| *to = r[axis]),
                    Op::Strength(j) => to.fill(strengths[j]),
                    Op::Constant(bits) => to.fill(f64::from_bits(bits)),
                    Op::Add => each!(|a, b, _c| a + b),
                    Op::Sub => each!(|a, b, _c| a - b),
                    Op::Mul => each!(|a, b, _c| a * b),
                    Op::Div => each!(|a, b, _c| a / b),
                    Op::Neg => each!(|a, _b, _c| -a),
                    Op::Fma => each!(|a, b, c| a.mul_add(b, c)),
                    Op::Exp => each!(|a, _b, _c| a.exp()),
                    Op::Sqrt => each!(|a, _b, _c| a.sqrt()),
                    Op::Lt => each!(|a, b, _c| flag(a < b)),
                    Op::Le => each!(|a, b, _c| flag(a <= b)),
                    Op::Eq => each!(|a, b, _c| flag(a == b)),
                    Op::And => each!(|a, b, _c| a * b),
                    Op::Or => each!(|a, b, _c| flag(a + b != 0.0)),
                    Op::Not => each!(|a, _b, _c| flag(a == 0.0)),
                    Op::Select => each!(|a, b, c| if a != 0.0 { b } else { c }),
                    op => each!(|a, b, c| op.apply([a, b, c])),
                }
            }
            for (k, out) in out.chunks_mut(values.max(1)).enumerate().take(r.len()) {
                out.iter_mut().zip(&self.values).for_each(|(to, &v)| *to = results[v as usize][k]);
            }
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
}
