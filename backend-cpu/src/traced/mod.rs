//! The loop over pairs of a kernel that was made at run time, or whose loop is not compiled. A [`Program`] carries out
//! the operations of a [`Tape`](fmm_traits::Tape) one after the other, each for a block of pairs: [`TARGETS`] targets × [`SOURCES`]
//! vectors of sources. So the cost of finding out what to do is shared by hundreds of pairs. The block of each result
//! stays in the first-level cache.

mod code;
mod native;

use self::code::{Code, Instruction, Operand};
use crate::lanes::{Isa, Vectorized, dispatch};
use crate::pool::Pool;
use crate::soa::{PAD, Soa, Targets};
use fmm_traits::tape::Op;
use fmm_traits::{Error, Lane, Member, Real, Simd, SimdLane};
use std::ops::Range;
use std::sync::OnceLock;

/// Targets of a block. [`TARGETS`] × [`SOURCES`] balances the time to choose an operation (about that of four vectors)
/// against the cache, which should hold the blocks: 2 KiB each with vectors of 64 bytes.
const TARGETS: usize = 8;
/// Vectors of sources of a block. Their contributions are added up in a register, before the sum is stored.
const SOURCES: usize = 4;
/// Vectors of a block: the vectors of target 0, then those of target 1, …
const VECTORS: usize = TARGETS * SOURCES;

/// A loop over pairs for a kernel without a loop of its own.
pub struct Program<T> {
    kernel: Member,
    /// Made when it is first needed.
    code: OnceLock<Code>,
    pieces: usize,
    scratch: Pool<Vec<T>>,
    /// Whether the C compiler makes the loop. If it fails, the interpreter runs.
    compiled: bool,
    /// The loop for the instruction set of the first sum.
    native: OnceLock<Option<(Isa, native::Loop<T>)>>,
}

impl<T: Real> Program<T> {
    /// The program of `kernel`, for coordinates in so many pieces.
    pub fn new(kernel: &Member, pieces: usize) -> Self {
        Program {
            kernel: kernel.clone(),
            code: OnceLock::new(),
            pieces,
            scratch: Pool::new(Vec::new),
            compiled: false,
            native: OnceLock::new(),
        }
    }

    /// As [`new`](Program::new), with a loop by the system's C compiler. The loop is compiled when it is first needed.
    pub fn compiled(kernel: &Member, pieces: usize) -> Self {
        Program { compiled: true, ..Program::new(kernel, pieces) }
    }

    /// Whether the C compiler makes the loop.
    pub fn is_compiled(&self) -> bool {
        self.compiled
    }

    fn code(&self) -> &Code {
        self.code.get_or_init(|| Code::new(&self.kernel))
    }

    /// Compiles the loop for an instruction set.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the words of the compiler.
    pub fn compile(&self, isa: Isa) -> Result<(), Error> {
        let made = native::Loop::new(self.code(), self.pieces, isa)?;
        // A loop that is there already stays.
        let _ = self.native.set(Some((isa, made)));
        Ok(())
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
        let code = self.code();
        let mut scalars = vec![T::default(); code.scalars.values().len()];
        code.scalars.evaluate(params, &[], &[], &mut scalars);
        if self.compiled {
            let make = || native::Loop::new(code, self.pieces, isa).ok().map(|made| (isa, made));
            if let Some((of, made)) = self.native.get_or_init(make)
                && *of == isa
            {
                return self.add(made, scalars, targets, sources, range, own, out);
            }
        }
        self.scratch.with(|memory| {
            let work = Sum { code, pieces: self.pieces, scalars: &scalars, targets, sources, range, own, out, memory };
            dispatch(isa, work);
        });
    }

    /// [`sum`](Program::sum) by a loop of the C compiler.
    fn add(
        &self,
        by: &native::Loop<T>,
        mut scalars: Vec<T>,
        targets: Targets<T>,
        sources: &Soa<T>,
        range: Range<usize>,
        own: Option<usize>,
        out: &mut [T],
    ) {
        let (code, width) = (self.code(), by.width());
        let (length, n) = (sources.row(0).len(), targets[0].len());
        let (begin, end) = (range.start, range.end.next_multiple_of(width).min(length));
        let sets = (sources.rows() - 3 * self.pieces) / code.strengths;
        assert!(sources.rows() == 3 * self.pieces + sets * code.strengths && begin <= end && end <= length);
        assert!(begin % width == 0 && end % width == 0 && out.len() == sets * n * code.values.len() && width <= PAD);
        assert!(targets[..3 * self.pieces].iter().all(|row| row.len() == n));
        scalars.push(T::default());
        let arguments = native::Arguments {
            targets: targets.map(|row| row.as_ptr()),
            n: n as isize,
            rows: sources.row(0).as_ptr(),
            stride: sources.stride() as isize,
            begin: begin as isize,
            end: end as isize,
            sets: sets as isize,
            own: own.unwrap_or(0) as isize,
            skip: own.is_some().into(),
            scalars: scalars.as_ptr(),
            out: out.as_mut_ptr(),
            function: native::no_function,
        };
        // SAFETY: the assertions give the sizes: `n` coordinates in each row of the targets; rows of `length` numbers,
        // all in one allocation that `sources` holds, on cache lines; one scalar at least, and as many as the code has;
        // sets × n × values sums, which this call alone may write.
        unsafe { by.add(arguments) };
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
