//! The loop over pairs of a kernel that was made at run time. A [`Program`] carries out the operations of a
//! [`Tape`] one after the other, each for a block of pairs: `TARGETS` targets × one vector of sources. So the cost of
//! finding out what to do is shared by hundreds of pairs. The block of each result stays in the first-level cache.
//!
//! Before the loop, a program is simplified for it: results that depend on parameters alone are computed once per
//! call; r·r is made together with r; a product that is only added becomes a fused multiply-add; and a kernel of one
//! strength is evaluated for strength 1, and multiplied by the strength as it is added to the sums.

use crate::lanes::{Isa, Vectorized, dispatch};
use crate::pool::Pool;
use crate::soa::{PAD, Soa, Targets};
use fmm_traits::tape::{Node, Op};
use fmm_traits::{Lane, Member, Real, Simd, SimdLane, Tape};
use std::ops::Range;

/// Targets of a block. It balances the time to choose an operation (about that of four vectors) against the cache, which
/// should hold the registers: 2 KiB each with vectors of 64 bytes.
const TARGETS: usize = 32;

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
    values: Vec<Operand>,
    strengths: usize,
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
        for &v in &values {
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
            if uniform[i] || matches!(n.op, Op::Coordinate(_) | Op::Strength(_)) {
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
        let values = values.iter().map(|&v| operand(v, &place)).collect();
        let scalars = tape.with_nodes(
            nodes.iter().map(|n| Node { op: n.op, args: n.args.map(|a| if a == SQUARE { 0 } else { a }) }).collect(),
            wanted,
        );
        Code { scalars, inputs, instructions, blocks, values, strengths: kernel.strengths, unit }
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
                (Some([a, b]), _) if a != SQUARE || b != SQUARE => push(&mut nodes, Op::Fma, [a, b, arg(1)]),
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
    let to = |a: u32, moved: &[u32]| if a == SQUARE { SQUARE } else { moved[a as usize] };
    for (i, n) in nodes.into_iter().enumerate().filter(|(i, _)| used[*i]) {
        let mut node = Node { op: n.op, args: [0; 3] };
        (0..n.op.arity()).for_each(|k| node.args[k] = to(n.args[k], &moved));
        let known = kept.iter().position(|k| *k == node);
        moved[i] = known.unwrap_or(kept.len()) as u32;
        if known.is_none() {
            kept.push(node);
        }
    }
    let values = values.into_iter().map(|v| to(v, &moved)).collect();
    (kept, values)
}

/// A loop over pairs that interprets a kernel.
pub struct Program<T> {
    code: Code,
    pieces: usize,
    scratch: Pool<Vec<T>>,
}

impl<T: Real> Program<T> {
    /// The program of `kernel`, for coordinates in so many pieces.
    pub fn new(kernel: &Member, pieces: usize) -> Self {
        Program { code: Code::new(kernel), pieces, scratch: Pool::new(Vec::new) }
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
        let mut scalars = vec![T::default(); self.code.scalars.values().len()];
        self.code.scalars.evaluate(params, &[], &[], &mut scalars);
        self.scratch.with(|memory| {
            let work = Sum {
                code: &self.code,
                pieces: self.pieces,
                scalars: &scalars,
                targets,
                sources,
                range,
                own,
                out,
                memory,
            };
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
        // Memory: blocks, scalars, sums of each set. Everything in vectors, from a boundary of a cache line.
        let vectors = code.blocks * TARGETS + scalars.len().max(1) + sets * count * TARGETS;
        let line = 64 / size_of::<T>();
        memory.clear();
        memory.resize(vectors * width + line, T::default());
        let offset = memory.as_ptr().align_offset(64).min(line);
        let memory = &mut memory[offset..][..vectors * width];
        let (blocks, rest) = memory.split_at_mut(code.blocks * TARGETS * width);
        let (constants, sums) = rest.split_at_mut(scalars.len().max(1) * width);
        for (to, x) in constants.chunks_exact_mut(width).zip(scalars) {
            to.fill(*x);
        }
        let mut first = 0;
        while first < n {
            let some = (n - first).min(TARGETS);
            sums.fill(T::default());
            let mut j = begin;
            while j < end {
                inputs::<S, T>(code, pieces, targets, first..first + some, sources, j, blocks);
                let mut set = 0;
                while set < sets {
                    let strengths = 3 * pieces + set * code.strengths;
                    if set == 0 || !code.unit {
                        carry_out::<S, T>(code, constants, sources, strengths, j, some, blocks);
                    }
                    let itself = own.map(|own| (own + first) as f64 - j as f64);
                    let to = &mut sums[set * count * TARGETS * width..][..count * TARGETS * width];
                    add::<S, T>(code, constants, sources, strengths, j, some, itself, blocks, to);
                    set += 1;
                }
                j += width;
            }
            for set in 0..sets {
                for (i, row) in
                    sums[set * count * TARGETS * width..].chunks_exact(TARGETS * width).take(count).enumerate()
                {
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

/// Writes the coordinates of target − source, and r·r, for the sources from `j` on.
#[inline(always)]
fn inputs<S: Simd, T: Real>(
    code: &Code,
    pieces: usize,
    targets: Targets<T>,
    range: Range<usize>,
    sources: &Soa<T>,
    j: usize,
    blocks: &mut [T],
) {
    let width = <T::Vector<S> as SimdLane>::WIDTH;
    let zero = <T::Vector<S> as Lane>::splat(0.0);
    let mut source = [zero; 6];
    for r in 0..3 * pieces {
        let row = &sources.row(r)[j..j + width];
        // SAFETY: `row` has `width` entries.
        source[r] = unsafe { SimdLane::load(row.as_ptr()) };
    }
    let mut t = 0;
    while t < range.len() {
        let mut d = [zero; 3];
        for a in 0..3 {
            d[a] = <T::Vector<S> as SimdLane>::broadcast(targets[a][range.start + t]) - source[a];
            if pieces == 2 {
                let rest = <T::Vector<S> as SimdLane>::broadcast(targets[3 + a][range.start + t]);
                d[a] = d[a] - source[3 + a] + rest;
            }
        }
        let square = d[0].mul_add(d[0], d[1].mul_add(d[1], d[2] * d[2]));
        let all = [d[0], d[1], d[2], square];
        for k in 0..4 {
            if let Some(block) = code.inputs[k] {
                let to = &mut blocks[(block * TARGETS + t) * width..][..width];
                // SAFETY: `to` has `width` entries.
                unsafe { all[k].store(to.as_mut_ptr()) };
            }
        }
        t += 1;
    }
}

/// The place of an operand: where its first vector begins, and the distance to the next.
#[inline(always)]
fn place<T: Real>(
    operand: Operand,
    width: usize,
    blocks: *const T,
    constants: &[T],
    sources: &Soa<T>,
    strengths: usize,
    j: usize,
) -> (*const T, usize) {
    match operand {
        Operand::Block(block) => (blocks.wrapping_add(block * TARGETS * width), width),
        Operand::Scalar(k) => (constants[k * width..][..width].as_ptr(), 0),
        Operand::Strength(c) => (sources.row(strengths + c)[j..j + width].as_ptr(), 0),
    }
}

/// Carries out the instructions for the first `some` vectors of each block.
#[inline(always)]
fn carry_out<S: Simd, T: Real>(
    code: &Code,
    constants: &[T],
    sources: &Soa<T>,
    strengths: usize,
    j: usize,
    some: usize,
    blocks: &mut [T],
) {
    let width = <T::Vector<S> as SimdLane>::WIDTH;
    assert!(some <= TARGETS && blocks.len() == code.blocks * TARGETS * width);
    let base = blocks.as_mut_ptr();
    for instruction in &code.instructions {
        let Instruction { op, args, to } = *instruction;
        assert!(to < code.blocks && args.iter().all(|a| !matches!(a, Operand::Block(b) if *b >= code.blocks)));
        let mut from = [(base as *const T, 0); 3];
        for k in 0..op.arity() {
            from[k] = place(args[k], width, base, constants, sources, strengths, j);
        }
        let to = base.wrapping_add(to * TARGETS * width);
        macro_rules! each {
            (|$a:ident, $b:ident, $c:ident| $result:expr) => {{
                let mut t = 0;
                while t < some {
                    // SAFETY: `from` and `to` begin blocks of TARGETS vectors, of which t < TARGETS is one, or single
                    // vectors with distance 0 (`place`); blocks are inside `blocks` (asserted). A vector is read
                    // before the vector at the same place is written.
                    unsafe {
                        let $a = <T::Vector<S> as SimdLane>::load(from[0].0.add(t * from[0].1));
                        let $b = <T::Vector<S> as SimdLane>::load(from[1].0.add(t * from[1].1));
                        let $c = <T::Vector<S> as SimdLane>::load(from[2].0.add(t * from[2].1));
                        let result = $result;
                        result.store(to.add(t * width));
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

/// Adds the values of the block to the sums of a set, times the strength if values are per unit of it. `itself` is the
/// lane of target 0, which the target skips.
#[inline(always)]
fn add<S: Simd, T: Real>(
    code: &Code,
    constants: &[T],
    sources: &Soa<T>,
    strengths: usize,
    j: usize,
    some: usize,
    itself: Option<f64>,
    blocks: &[T],
    sums: &mut [T],
) {
    let width = <T::Vector<S> as SimdLane>::WIDTH;
    let zero = <T::Vector<S> as Lane>::splat(0.0);
    let mut lanes = [T::default(); PAD];
    for (i, lane) in lanes.iter_mut().enumerate() {
        *lane = T::of(i as f64);
    }
    let row = if code.unit { &sources.row(strengths)[j..j + width] } else { &sources.row(0)[j..j + width] };
    // SAFETY: `lanes` has PAD entries, the widest vector; `row` has `width`.
    let (lanes, row) =
        unsafe { (<T::Vector<S> as SimdLane>::load(lanes.as_ptr()), <T::Vector<S> as SimdLane>::load(row.as_ptr())) };
    let strength = if code.unit { row } else { <T::Vector<S> as Lane>::splat(1.0) };
    for (value, to) in code.values.iter().zip(sums.chunks_exact_mut(TARGETS * width)) {
        let (from, step) = place(*value, width, blocks.as_ptr(), constants, sources, strengths, j);
        assert!(!matches!(value, Operand::Block(b) if *b >= code.blocks) && some <= TARGETS);
        let mut t = 0;
        while t < some {
            let mut strength = strength;
            if let Some(itself) = itself {
                let own = lanes.eq(Lane::splat(itself + t as f64));
                strength = Lane::select(own, zero, strength);
            }
            // SAFETY: as in `carry_out`; `to` has TARGETS vectors.
            unsafe {
                let u = <T::Vector<S> as SimdLane>::load(from.add(t * step));
                let to = to.as_mut_ptr().add(t * width);
                u.mul_add(strength, <T::Vector<S> as SimdLane>::load(to)).store(to);
            }
            t += 1;
        }
    }
}
