//! The loop over pairs of a kernel that was made at run time, or whose loop is not compiled. A [`Program`] carries out
//! the operations of a [`Tape`] one after the other, each for a block of pairs: [`TARGETS`] targets × [`SOURCES`]
//! vectors of sources. So the cost of finding out what to do is shared by hundreds of pairs. The block of each result
//! stays in the first-level cache.
//!
//! Before the loop, a program is simplified for it: results that depend on parameters alone are computed once per
//! call; r·r is made together with r; a product that is only added becomes a fused multiply-add, also where it is added
//! to the sums; and a kernel of one strength is evaluated for strength 1, and multiplied by the strength as it is added
//! to the sums.

use crate::lanes::{Isa, Vectorized, dispatch};
use crate::pool::Pool;
use crate::soa::{PAD, Soa, Targets};
use fmm_traits::tape::{Node, Op};
use fmm_traits::{Lane, Member, Real, Simd, SimdLane, Tape};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;

/// Targets of a block. [`TARGETS`] × [`SOURCES`] balances the time to choose an operation (about that of four vectors)
/// against the cache, which should hold the blocks: 2 KiB each with vectors of 64 bytes.
const TARGETS: usize = 8;
/// Vectors of sources of a block. Their contributions are added up in a register, before the sum is stored.
const SOURCES: usize = 4;
/// Vectors of a block: the vectors of target 0, then those of target 1, …
const VECTORS: usize = TARGETS * SOURCES;

/// Where an operation finds an argument.
#[derive(Clone, Copy, Debug)]
enum Operand {
    /// The block with this number.
    Block(usize),
    /// A number that is the same for all pairs.
    Scalar(usize),
    /// A strength of the source.
    Strength(usize),
}

/// An operation on blocks.
#[derive(Clone, Copy, Debug)]
struct Instruction {
    op: Op,
    args: [Operand; 3],
    to: usize,
}

/// A kernel in the form in which the loop carries it out.
#[derive(Debug)]
struct Code {
    /// The numbers that are the same for all pairs.
    scalars: Tape,
    /// The blocks of the coordinates x, y, z, and of r·r, as far as they are used.
    inputs: [Option<usize>; 4],
    instructions: Vec<Instruction>,
    blocks: usize,
    /// Each value is a product of two operands, or one operand.
    values: Vec<(Operand, Option<Operand>)>,
    strengths: usize,
    /// Strengths without the attributes of a source.
    linear: usize,
    /// Whether values are per unit of the only strength.
    unit: bool,
}

/// Marks r·r among the nodes of a tape.
const SQUARE: u32 = u32::MAX;

impl Code {
    fn new(kernel: &Member) -> Self {
        let tape = kernel.tape();
        let unit = kernel.strengths == 1;
        let nodes = prepared(&tape, unit);
        let (nodes, values) = nodes;
        let count = nodes.len();
        let is_input = |n: &Node| matches!(n.op, Op::Parameter(_) | Op::Constant(_));
        // Results that are the same for all pairs.
        let mut uniform = vec![false; count];
        for (i, n) in nodes.iter().enumerate() {
            let args = &n.args[..n.op.arity()];
            uniform[i] = is_input(n) || (n.op.arity() > 0 && args.iter().all(|&a| a != SQUARE && uniform[a as usize]));
        }
        let mut wanted: Vec<u32> = Vec::new();
        let mut scalar = |a: u32| match wanted.iter().position(|&w| w == a) {
            Some(k) => k,
            None => {
                wanted.push(a);
                wanted.len() - 1
            }
        };
        // The last operation that uses a result; values are used to the end.
        let mut last = vec![0; count];
        let mut last_square = None;
        for (i, n) in nodes.iter().enumerate().filter(|(i, _)| !uniform[*i]) {
            for &a in &n.args[..n.op.arity()] {
                match a {
                    SQUARE => last_square = Some(i),
                    a => last[a as usize] = i,
                }
            }
        }
        // A value that is a product, which nothing else uses, is multiplied as it is added to its sum.
        let mut uses = vec![0; count];
        let args = nodes.iter().flat_map(|n| &n.args[..n.op.arity()]);
        args.chain(&values).filter(|&&a| a != SQUARE).for_each(|&a| uses[a as usize] += 1);
        let is_product =
            |v: u32| v != SQUARE && nodes[v as usize].op == Op::Mul && !uniform[v as usize] && uses[v as usize] == 1;
        let factors: Vec<Vec<u32>> = values
            .iter()
            .map(|&v| if is_product(v) { nodes[v as usize].args[..2].to_vec() } else { vec![v] })
            .collect();
        for &v in factors.iter().flatten() {
            match v {
                SQUARE => last_square = Some(count),
                v => last[v as usize] = count,
            }
        }
        let (mut free, mut blocks): (Vec<usize>, usize) = (Vec::new(), 0);
        let mut place: Vec<Option<usize>> = vec![None; count];
        let mut inputs = [None; 4];
        let mut claim = |free: &mut Vec<usize>| {
            free.pop().unwrap_or_else(|| {
                blocks += 1;
                blocks - 1
            })
        };
        for (i, n) in nodes.iter().enumerate() {
            if let Op::Coordinate(axis) = n.op
                && last[i] > 0
            {
                let block = claim(&mut free);
                (inputs[axis], place[i]) = (Some(block), Some(block));
            }
        }
        if last_square.is_some() {
            inputs[3] = Some(claim(&mut free));
        }
        let mut operand = |a: u32, place: &[Option<usize>]| match a {
            SQUARE => Operand::Block(inputs[3].unwrap_or(0)),
            a if uniform[a as usize] => Operand::Scalar(scalar(a)),
            a => match (nodes[a as usize].op, place[a as usize]) {
                (Op::Strength(j), _) => Operand::Strength(j),
                (_, block) => Operand::Block(block.unwrap_or(0)),
            },
        };
        let mut instructions = Vec::new();
        for (i, n) in nodes.iter().enumerate() {
            if uniform[i] || matches!(n.op, Op::Coordinate(_) | Op::Strength(_)) || last[i] == 0 {
                continue;
            }
            let arity = n.op.arity();
            let mut args = [Operand::Scalar(0); 3];
            for (to, &a) in args.iter_mut().zip(&n.args[..arity]) {
                *to = operand(a, &place);
            }
            // An element is read before it is written, so that the result may take the block of an argument.
            for (k, &a) in n.args[..arity].iter().enumerate() {
                let first = !n.args[..k].contains(&a);
                let is_input = a == SQUARE || matches!(nodes[a as usize].op, Op::Coordinate(_));
                // Several sets of strengths need the coordinates again.
                if is_input && !unit {
                    continue;
                }
                match a {
                    SQUARE if last_square == Some(i) && first => free.extend(inputs[3]),
                    SQUARE => {}
                    a if last[a as usize] == i && first => free.extend(place[a as usize]),
                    _ => {}
                }
            }
            let to = claim(&mut free);
            place[i] = Some(to);
            instructions.push(Instruction { op: n.op, args, to });
        }
        let values = factors.iter().map(|f| (operand(f[0], &place), f.get(1).map(|&b| operand(b, &place)))).collect();
        let scalars = tape.with_nodes(
            nodes.iter().map(|n| Node { op: n.op, args: n.args.map(|a| if a == SQUARE { 0 } else { a }) }).collect(),
            wanted,
        );
        let (strengths, linear) = (kernel.strengths, kernel.linear());
        Code { scalars, inputs, instructions, blocks, values, strengths, linear, unit }
    }
}

/// The operations of `tape` and its values, for strength 1 if `unit`, with r·r as [`SQUARE`] and with fused
/// multiply-adds. A root becomes a product with the reciprocal root, which vectors compute faster.
fn prepared(tape: &Tape, unit: bool) -> (Vec<Node>, Vec<u32>) {
    let old = tape.nodes();
    let mut uses = vec![0; old.len()];
    for n in old {
        n.args[..n.op.arity()].iter().for_each(|&a| uses[a as usize] += 1);
    }
    tape.values().iter().for_each(|&v| uses[v as usize] += 1);
    let coordinate = |a: u32| match old[a as usize].op {
        Op::Coordinate(axis) => Some(axis),
        _ => None,
    };
    // x·x, with the rest of the sum.
    let squared = |a: u32| {
        let Node { op, args: [x, y, rest] } = old[a as usize];
        match op {
            Op::Fma if x == y => Some((coordinate(x)?, Some(rest))),
            Op::Mul if x == y => Some((coordinate(x)?, None)),
            _ => None,
        }
    };
    let is_square = |a: u32| -> bool {
        let Some((i, Some(rest))) = squared(a) else { return false };
        let Some((j, Some(rest))) = squared(rest) else { return false };
        matches!(squared(rest), Some((k, None)) if i != j && j != k && i != k)
    };
    let (mut nodes, mut moved): (Vec<Node>, Vec<u32>) = (Vec::new(), Vec::new());
    let constant = |x: f64| Node { op: Op::Constant(x.to_bits()), args: [0; 3] };
    let one = (nodes.len() as u32, nodes.push(constant(1.0))).0;
    for (i, n) in old.iter().enumerate() {
        let push = |nodes: &mut Vec<Node>, op, args| {
            nodes.push(Node { op, args });
            nodes.len() as u32 - 1
        };
        let arg = |k: usize| moved[n.args[k] as usize];
        // The factors of argument `k`, if it is a product that nothing else uses.
        let product = |k: usize| {
            let Node { op, args: [a, b, _] } = old[n.args[k] as usize];
            (op == Op::Mul && uses[n.args[k] as usize] == 1).then(|| [moved[a as usize], moved[b as usize]])
        };
        let at = match n.op {
            _ if is_square(i as u32) => SQUARE,
            Op::Strength(_) if unit => one,
            Op::Mul if arg(0) == one => arg(1),
            Op::Mul if arg(1) == one => arg(0),
            Op::Add => match (product(0), product(1)) {
                (Some([a, b]), _) => push(&mut nodes, Op::Fma, [a, b, arg(1)]),
                (_, Some([a, b])) => push(&mut nodes, Op::Fma, [a, b, arg(0)]),
                _ => push(&mut nodes, Op::Add, [arg(0), arg(1), 0]),
            },
            Op::Sqrt => {
                let root = push(&mut nodes, Op::Rsqrt, [arg(0), 0, 0]);
                push(&mut nodes, Op::Mul, [arg(0), root, 0])
            }
            op => {
                let mut args = [0; 3];
                (0..op.arity()).for_each(|k| args[k] = arg(k));
                push(&mut nodes, op, args)
            }
        };
        moved.push(at);
    }
    let values: Vec<u32> = tape.values().iter().map(|&v| moved[v as usize]).collect();
    live(nodes, values)
}

/// The nodes on which a value depends, each once.
fn live(nodes: Vec<Node>, values: Vec<u32>) -> (Vec<Node>, Vec<u32>) {
    let mut used = vec![false; nodes.len()];
    values.iter().filter(|&&v| v != SQUARE).for_each(|&v| used[v as usize] = true);
    for (i, n) in nodes.iter().enumerate().rev() {
        if used[i] {
            n.args[..n.op.arity()].iter().filter(|&&a| a != SQUARE).for_each(|&a| used[a as usize] = true);
        }
    }
    let (mut kept, mut moved): (Vec<Node>, Vec<u32>) = (Vec::new(), vec![0; nodes.len()]);
    let mut places: HashMap<Node, u32> = HashMap::new();
    let to = |a: u32, moved: &[u32]| if a == SQUARE { SQUARE } else { moved[a as usize] };
    for (i, n) in nodes.into_iter().enumerate().filter(|(i, _)| used[*i]) {
        let mut node = Node { op: n.op, args: [0; 3] };
        (0..n.op.arity()).for_each(|k| node.args[k] = to(n.args[k], &moved));
        moved[i] = *places.entry(node).or_insert_with(|| {
            kept.push(node);
            kept.len() as u32 - 1
        });
    }
    let values = values.into_iter().map(|v| to(v, &moved)).collect();
    (kept, values)
}

/// A loop over pairs that interprets a kernel.
pub struct Program<T> {
    kernel: Member,
    /// Made when it is first needed.
    code: OnceLock<Code>,
    pieces: usize,
    scratch: Pool<Vec<T>>,
}

impl<T: Real> Program<T> {
    /// The program of `kernel`, for coordinates in so many pieces.
    pub fn new(kernel: &Member, pieces: usize) -> Self {
        Program { kernel: kernel.clone(), code: OnceLock::new(), pieces, scratch: Pool::new(Vec::new) }
    }

    /// [`sum`](crate::sum::sum()) of the kernel.
    pub fn sum(
        &self,
        isa: Isa,
        params: &[T],
        targets: Targets<T>,
        sources: &Soa<T>,
        range: Range<usize>,
        own: Option<usize>,
        out: &mut [T],
    ) {
        let code = self.code.get_or_init(|| Code::new(&self.kernel));
        let mut scalars = vec![T::default(); code.scalars.values().len()];
        code.scalars.evaluate(params, &[], &[], &mut scalars);
        self.scratch.with(|memory| {
            let work = Sum { code, pieces: self.pieces, scalars: &scalars, targets, sources, range, own, out, memory };
            dispatch(isa, work);
        });
    }
}

struct Sum<'a, T> {
    code: &'a Code,
    pieces: usize,
    scalars: &'a [T],
    targets: Targets<'a, T>,
    sources: &'a Soa<T>,
    range: Range<usize>,
    own: Option<usize>,
    out: &'a mut [T],
    memory: &'a mut Vec<T>,
}

impl<T: Real> Vectorized for Sum<'_, T> {
    type Output = ();
    const SINGLE: bool = T::EPSILON > 1e-10;
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Sum { code, pieces, scalars, targets, sources, range, own, out, memory } = self;
        let width = <T::Vector<S> as SimdLane>::WIDTH;
        let length = sources.row(0).len();
        let (begin, end) = (range.start, range.end.next_multiple_of(width).min(length));
        let (n, count) = (targets[0].len(), code.values.len());
        let sets = (sources.rows() - 3 * pieces) / code.strengths;
        assert!(sources.rows() == 3 * pieces + sets * code.strengths && begin <= end && end <= length);
        assert!(begin % width == 0 && end % width == 0 && out.len() == sets * n * count && width <= PAD);
        // Memory: blocks, scalars, the strengths of a set, sums of each set. Everything in vectors, from a boundary of
        // a cache line.
        let sizes = [code.blocks * VECTORS, scalars.len().max(1), code.strengths * SOURCES, sets * count * TARGETS];
        let line = 64 / size_of::<T>();
        let need = sizes.iter().sum::<usize>() * width + line;
        if memory.len() < need {
            memory.resize(need, T::default());
        }
        let offset = memory.as_ptr().align_offset(64).min(line);
        let (blocks, rest) = memory[offset..].split_at_mut(sizes[0] * width);
        let (constants, rest) = rest.split_at_mut(sizes[1] * width);
        let (strengths, rest) = rest.split_at_mut(sizes[2] * width);
        let sums = &mut rest[..sizes[3] * width];
        for (to, x) in constants.chunks_exact_mut(width).zip(scalars) {
            to.fill(*x);
        }
        let mut first = 0;
        while first < n {
            let some = (n - first).min(TARGETS);
            sums.fill(T::default());
            let mut j = begin;
            while j < end {
                let vectors = ((end - j) / width).min(SOURCES);
                inputs::<S, T>(code, pieces, targets, first..first + some, sources, j, vectors, blocks);
                let mut set = 0;
                while set < sets {
                    for c in 0..code.strengths {
                        let to = &mut strengths[c * SOURCES * width..][..SOURCES * width];
                        let row = sources.row(3 * pieces + set * code.strengths + c);
                        to[..vectors * width].copy_from_slice(&row[j..j + vectors * width]);
                        // Vectors beyond the end count nothing: their strengths are 0.
                        let usual = c.checked_sub(code.linear).map_or(T::default(), |k| sources.usual()[k]);
                        to[vectors * width..].fill(usual);
                    }
                    let block = Block { code, constants, strengths, targets: some };
                    if set == 0 || !code.unit {
                        block.carry_out::<S>(blocks);
                    }
                    let itself = own.map(|own| (own + first) as f64 - j as f64);
                    let to = &mut sums[set * count * TARGETS * width..][..count * TARGETS * width];
                    block.add::<S>(itself, vectors, blocks, to);
                    set += 1;
                }
                j += vectors * width;
            }
            for (set, sums) in sums.chunks_exact(count * TARGETS * width).enumerate() {
                for (i, row) in sums.chunks_exact(TARGETS * width).enumerate() {
                    for (t, vector) in row.chunks_exact(width).take(some).enumerate() {
                        // SAFETY: `vector` has `width` entries.
                        let sum = unsafe { <T::Vector<S> as SimdLane>::load(vector.as_ptr()) }.sum();
                        out[(set * n + first + t) * count + i] += sum;
                    }
                }
            }
            first += some;
        }
    }
}

/// Writes the coordinates of target − source, and r·r, for `vectors` vectors of sources from `j` on.
#[inline(always)]
fn inputs<S: Simd, T: Real>(
    code: &Code,
    pieces: usize,
    targets: Targets<T>,
    range: Range<usize>,
    sources: &Soa<T>,
    j: usize,
    vectors: usize,
    blocks: &mut [T],
) {
    let width = <T::Vector<S> as SimdLane>::WIDTH;
    let zero = <T::Vector<S> as Lane>::splat(0.0);
    let mut source = [[zero; 6]; SOURCES];
    for v in 0..SOURCES {
        for r in 0..3 * pieces {
            // Vectors beyond the end repeat the last; their strengths are 0.
            let row = &sources.row(r)[j + v.min(vectors - 1) * width..][..width];
            // SAFETY: `row` has `width` entries.
            source[v][r] = unsafe { SimdLane::load(row.as_ptr()) };
        }
    }
    let mut t = 0;
    while t < range.len() {
        let mut at = [zero; 6];
        for r in 0..3 * pieces {
            at[r] = <T::Vector<S> as SimdLane>::broadcast(targets[r][range.start + t]);
        }
        for v in 0..SOURCES {
            let mut d = [zero; 3];
            for a in 0..3 {
                d[a] = at[a] - source[v][a];
                if pieces == 2 {
                    d[a] = d[a] - source[v][3 + a] + at[3 + a];
                }
            }
            let square = d[0].mul_add(d[0], d[1].mul_add(d[1], d[2] * d[2]));
            let all = [d[0], d[1], d[2], square];
            for k in 0..4 {
                if let Some(block) = code.inputs[k] {
                    let to = &mut blocks[(block * VECTORS + t * SOURCES + v) * width..][..width];
                    // SAFETY: `to` has `width` entries.
                    unsafe { all[k].store(to.as_mut_ptr()) };
                }
            }
        }
        t += 1;
    }
}

/// What does not change while a block is computed.
struct Block<'a, T> {
    code: &'a Code,
    /// Vectors of numbers that are the same for all pairs.
    constants: &'a [T],
    /// `SOURCES` vectors of each strength.
    strengths: &'a [T],
    /// Targets in use.
    targets: usize,
}

impl<T: Real> Block<'_, T> {
    /// Where an operand begins, the distance from target to target, and that from vector to vector of sources.
    #[inline(always)]
    fn place(&self, operand: Operand, width: usize, blocks: *const T) -> (*const T, usize, usize) {
        match operand {
            Operand::Block(b) => {
                assert!(b < self.code.blocks);
                (blocks.wrapping_add(b * VECTORS * width), SOURCES * width, width)
            }
            Operand::Scalar(k) => (self.constants[k * width..][..width].as_ptr(), 0, 0),
            Operand::Strength(c) => (self.strengths[c * SOURCES * width..][..SOURCES * width].as_ptr(), 0, width),
        }
    }

    /// Carries out the instructions for the targets in use.
    #[inline(always)]
    fn carry_out<S: Simd>(&self, blocks: &mut [T]) {
        let width = <T::Vector<S> as SimdLane>::WIDTH;
        assert!(self.targets <= TARGETS && blocks.len() == self.code.blocks * VECTORS * width);
        // All places come from one pointer, since a result may take the block of an argument.
        let base = blocks.as_mut_ptr();
        for instruction in &self.code.instructions {
            let Instruction { op, args, to } = *instruction;
            assert!(to < self.code.blocks);
            let mut from = [(base.cast_const(), 0, 0); 3];
            for k in 0..op.arity() {
                from[k] = self.place(args[k], width, base);
            }
            let to = base.wrapping_add(to * VECTORS * width);
            macro_rules! each {
                (|$a:ident, $b:ident, $c:ident| $result:expr) => {{
                    let mut t = 0;
                    while t < self.targets {
                        for v in 0..SOURCES {
                            // SAFETY: `place` returns blocks of TARGETS × SOURCES vectors (their lengths are asserted),
                            // or fewer with distances 0, all inside their arrays; t < TARGETS and v < SOURCES. The
                            // first block, which stands for a missing argument, exists because the result has a block.
                            // A vector is read before the vector at the same place is written.
                            unsafe {
                                let $a = <T::Vector<S> as SimdLane>::load(from[0].0.add(t * from[0].1 + v * from[0].2));
                                let $b = <T::Vector<S> as SimdLane>::load(from[1].0.add(t * from[1].1 + v * from[1].2));
                                let $c = <T::Vector<S> as SimdLane>::load(from[2].0.add(t * from[2].1 + v * from[2].2));
                                let result = $result;
                                result.store(to.add((t * SOURCES + v) * width));
                            }
                        }
                        t += 1;
                    }
                }};
            }
            let flag = |mask| <T::Vector<S> as Lane>::select(mask, Lane::splat(1.0), Lane::splat(0.0));
            let zero = <T::Vector<S> as Lane>::splat(0.0);
            match op {
                Op::Add => each!(|a, b, _c| a + b),
                Op::Sub => each!(|a, b, _c| a - b),
                Op::Mul => each!(|a, b, _c| a * b),
                Op::Div => each!(|a, b, _c| a / b),
                Op::Neg => each!(|a, _b, _c| -a),
                Op::Fma => each!(|a, b, c| a.mul_add(b, c)),
                Op::Sqrt => each!(|a, _b, _c| a.sqrt()),
                Op::Rsqrt => each!(|a, _b, _c| a.rsqrt()),
                Op::Exp => each!(|a, _b, _c| a.exp()),
                Op::Ln => each!(|a, _b, _c| a.ln()),
                Op::Sin => each!(|a, _b, _c| a.sin()),
                Op::Cos => each!(|a, _b, _c| a.cos()),
                Op::Erf => each!(|a, _b, _c| a.erf()),
                Op::BesselK0 => each!(|a, _b, _c| a.bessel_k0()),
                Op::BesselK1 => each!(|a, _b, _c| a.bessel_k1()),
                Op::Lt => each!(|a, b, _c| flag(a.lt(b))),
                Op::Le => each!(|a, b, _c| flag(a.le(b))),
                Op::Eq => each!(|a, b, _c| flag(a.eq(b))),
                Op::And => each!(|a, b, _c| a * b),
                Op::Or => each!(|a, b, _c| flag(!(a + b).eq(zero))),
                Op::Not => each!(|a, _b, _c| flag(a.eq(zero))),
                Op::Select => each!(|a, b, c| Lane::select(a.eq(zero), c, b)),
                Op::Parameter(_) | Op::Coordinate(_) | Op::Strength(_) | Op::Constant(_) => {}
            }
        }
    }

    /// Adds the values to the sums of a set, times the strength if values are per unit of it. `itself` is the lane of
    /// target 0, which the target skips.
    #[inline(always)]
    fn add<S: Simd>(&self, itself: Option<f64>, vectors: usize, blocks: &[T], sums: &mut [T]) {
        let width = <T::Vector<S> as SimdLane>::WIDTH;
        let zero = <T::Vector<S> as Lane>::splat(0.0);
        let one = <T::Vector<S> as Lane>::splat(1.0);
        let mut lanes = [T::default(); PAD];
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane = T::of(i as f64);
        }
        // SAFETY: `lanes` has PAD entries, the widest vector.
        let lanes = unsafe { <T::Vector<S> as SimdLane>::load(lanes.as_ptr()) };
        let mut strengths = [zero; SOURCES];
        for v in 0..vectors {
            let row = &self.strengths[v * width..][..width];
            // SAFETY: `row` has `width` entries.
            strengths[v] = if self.code.unit { unsafe { SimdLane::load(row.as_ptr()) } } else { one };
        }
        assert!(self.targets <= TARGETS && blocks.len() == self.code.blocks * VECTORS * width);
        let blocks = blocks.as_ptr();
        for (value, sums) in self.code.values.iter().zip(sums.chunks_exact_mut(TARGETS * width)) {
            let a = self.place(value.0, width, blocks);
            // The other factor, or the first again.
            let b = self.place(value.1.unwrap_or(value.0), width, blocks);
            let mut t = 0;
            while t < self.targets {
                let to = sums[t * width..][..width].as_mut_ptr();
                // SAFETY: as in `carry_out`; `to` has `width` entries.
                unsafe {
                    let mut sum = <T::Vector<S> as SimdLane>::load(to);
                    for v in 0..SOURCES {
                        let mut u = <T::Vector<S> as SimdLane>::load(a.0.add(t * a.1 + v * a.2));
                        if value.1.is_some() {
                            u = u * <T::Vector<S> as SimdLane>::load(b.0.add(t * b.1 + v * b.2));
                        }
                        if let Some(itself) = itself {
                            let own = Lane::splat(itself + t as f64 - (v * width) as f64);
                            u = Lane::select(lanes.eq(own), zero, u);
                        }
                        sum = u.mul_add(strengths[v], sum);
                    }
                    sum.store(to);
                }
                t += 1;
            }
        }
    }
}
