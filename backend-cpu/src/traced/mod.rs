//! The loop over pairs of a kernel that was made at run time, or whose loop is not compiled. A [`Program`] carries out
//! the steps of a [`Code`], each for a block of pairs: a few targets × [`SOURCES`] vectors of sources. So the cost of finding
//! out what to do is shared by hundreds of pairs. The blocks of all results stay in the first-level cache.

mod block;
mod code;
mod fuse;
mod native;
mod simplify;

use self::block::{Block, SOURCES};
use self::code::Code;
use self::fuse::{DISTANCE, INPUTS, ROOT};
use crate::lanes::{Isa, Vectorized, dispatch};
use crate::pool::Pool;
use crate::soa::{PAD, Soa, Targets};
use fmm_traits::{Error, Lane, Member, Real, Simd, SimdLane};
use std::ops::Range;
use std::sync::OnceLock;

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
        let rows = block::targets(code.blocks, width * size_of::<T>());
        let sizes = [
            code.blocks * rows * SOURCES,
            scalars.len().max(1) * SOURCES,
            code.strengths * SOURCES,
            sets * count * rows,
        ];
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
        for (to, x) in constants.chunks_exact_mut(SOURCES * width).zip(scalars) {
            to.fill(*x);
        }
        let mut first = 0;
        while first < n {
            let some = (n - first).min(rows);
            sums.fill(T::default());
            let mut j = begin;
            while j < end {
                let vectors = ((end - j) / width).min(SOURCES);
                inputs::<S, T>(code, pieces, targets, first..first + some, sources, j, vectors, rows, blocks);
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
                    let block = Block { code, constants, strengths, rows, targets: some };
                    if set == 0 || !code.unit {
                        block.carry_out::<S>(blocks);
                    }
                    // Only few blocks contain a target and itself.
                    let own = own.filter(|own| own + first < j + vectors * width && j < own + first + some);
                    let itself = own.map(|own| (own + first) as f64 - j as f64);
                    let to = &mut sums[set * count * rows * width..][..count * rows * width];
                    block.add::<S>(itself, blocks, to);
                    set += 1;
                }
                j += vectors * width;
            }
            for (set, sums) in sums.chunks_exact(count * rows * width).enumerate() {
                for (i, row) in sums.chunks_exact(rows * width).enumerate() {
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

/// Writes the coordinates of target − source, r·r and its roots for `vectors` vectors of sources from `j` on.
#[inline(always)]
fn inputs<S: Simd, T: Real>(
    code: &Code,
    pieces: usize,
    targets: Targets<T>,
    range: Range<usize>,
    sources: &Soa<T>,
    j: usize,
    vectors: usize,
    rows: usize,
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
    let has_root = code.inputs[ROOT].or(code.inputs[DISTANCE]).is_some();
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
            let (mut root, mut distance) = (zero, zero);
            if has_root {
                root = square.rsqrt();
                distance = square * root;
            }
            let all = [d[0], d[1], d[2], square, root, distance];
            for k in 0..INPUTS {
                if let Some(block) = code.inputs[k] {
                    let to = &mut blocks[((block * rows + t) * SOURCES + v) * width..][..width];
                    // SAFETY: `to` has `width` entries.
                    unsafe { all[k].store(to.as_mut_ptr()) };
                }
            }
        }
        t += 1;
    }
}
