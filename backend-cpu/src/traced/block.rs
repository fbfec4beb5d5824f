//! The steps of a kernel for one block of pairs.
//!
//! A block has some targets × [`SOURCES`] vectors of sources for each result: the vectors of target 0, then those of
//! target 1, … Numbers that do not depend on the target have vectors for one target.

use super::code::{Code, Instruction, MOST_ARGS, Operand, Step, Terms, Value};
use crate::soa::PAD;
use fmm_traits::tape::Op;
use fmm_traits::{Lane, Real, Simd, SimdLane};

/// Vectors of sources of a block. Their contributions are added up in a register, before the sum is stored.
pub const SOURCES: usize = 4;
/// Largest number of targets of a block. The time to choose a step is about that of four vectors.
const MOST_TARGETS: usize = 16;
/// Bytes that all blocks may take: most of a first-level cache of 32 KiB.
const CACHE: usize = 24 << 10;

/// Targets of a block, for so many blocks and vectors of so many bytes.
pub fn targets(blocks: usize, vector: usize) -> usize {
    (CACHE / (blocks.max(1) * SOURCES * vector)).clamp(2, MOST_TARGETS)
}

/// What does not change while a block is computed.
pub struct Block<'a, T> {
    pub code: &'a Code,
    /// `SOURCES` vectors of each number that is the same for all pairs.
    pub constants: &'a [T],
    /// `SOURCES` vectors of each strength.
    pub strengths: &'a [T],
    /// Targets for which a block has memory.
    pub rows: usize,
    /// Targets in use.
    pub targets: usize,
}

/// Arguments of a step: where the vectors for the next target begin, and the distance to those for the target after it.
struct Arguments<T> {
    at: [*const T; MOST_ARGS],
    step: [usize; MOST_ARGS],
}

impl<T: Real> Arguments<T> {
    /// Vector `v` of argument `k`.
    ///
    /// # Safety
    /// There is an argument `k`, and v < [`SOURCES`].
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, k: usize, v: usize) -> T::Vector<S> {
        // SAFETY: as promised, `SOURCES` vectors follow.
        unsafe { SimdLane::load(self.at[k].add(v * <T::Vector<S> as SimdLane>::WIDTH)) }
    }

    /// Goes on to the next target.
    #[inline(always)]
    fn advance(&mut self, count: usize) {
        for k in 0..count {
            self.at[k] = self.at[k].wrapping_add(self.step[k]);
        }
    }

    /// `PLUS` products of pairs of arguments less `MINUS` products; without any, the first argument.
    ///
    /// # Safety
    /// There are as many arguments, and v < [`SOURCES`].
    #[inline(always)]
    unsafe fn products<S: Simd, const PLUS: usize, const MINUS: usize>(&self, v: usize) -> T::Vector<S> {
        // SAFETY: as promised.
        unsafe {
            let first = self.load::<S>(0, v);
            if const { PLUS + MINUS == 0 } {
                return first;
            }
            let first = if const { PLUS == 0 } { -first } else { first };
            self.more::<S, PLUS, MINUS>(v, 1, first * self.load::<S>(1, v))
        }
    }

    /// Adds the products from number `from` on to `sum`.
    ///
    /// # Safety
    /// As for [`products`](Self::products).
    #[inline(always)]
    unsafe fn more<S: Simd, const PLUS: usize, const MINUS: usize>(
        &self,
        v: usize,
        from: usize,
        mut sum: T::Vector<S>,
    ) -> T::Vector<S> {
        let mut k = from;
        while k < PLUS + MINUS {
            // SAFETY: as promised.
            let (a, b) = unsafe { (self.load::<S>(2 * k, v), self.load::<S>(2 * k + 1, v)) };
            sum = if k < PLUS { a.mul_add(b, sum) } else { (-a).mul_add(b, sum) };
            k += 1;
        }
        sum
    }
}

/// Runs `$run::<PLUS, MINUS>` for the numbers of products of `$terms`.
macro_rules! for_terms {
    ($terms:expr, $run:ident) => {
        match ($terms.plus, $terms.minus) {
            (0, 0) => $run!(0, 0),
            (1, 0) => $run!(1, 0),
            (0, 1) => $run!(0, 1),
            (2, 0) => $run!(2, 0),
            (1, 1) => $run!(1, 1),
            (0, 2) => $run!(0, 2),
            (3, 0) => $run!(3, 0),
            (2, 1) => $run!(2, 1),
            (1, 2) => $run!(1, 2),
            (0, 3) => $run!(0, 3),
            (plus, minus) => unreachable!("{plus} + {minus} products in a step"),
        }
    };
}

impl<T: Real> Block<'_, T> {
    /// Where arguments are. All places in blocks come from one pointer, since a result may take the block of an
    /// argument.
    #[inline(always)]
    fn arguments(&self, args: &[Operand], width: usize, blocks: *const T) -> Arguments<T> {
        let mut found = Arguments { at: [blocks; MOST_ARGS], step: [0; MOST_ARGS] };
        for (k, &operand) in args.iter().enumerate() {
            (found.at[k], found.step[k]) = match operand {
                Operand::Block(b) => {
                    assert!(b < self.code.blocks);
                    (blocks.wrapping_add(b * self.rows * SOURCES * width), SOURCES * width)
                }
                Operand::Scalar(i) => (self.constants[i * SOURCES * width..][..SOURCES * width].as_ptr(), 0),
                Operand::Strength(c) => (self.strengths[c * SOURCES * width..][..SOURCES * width].as_ptr(), 0),
            };
        }
        found
    }

    /// Carries out the instructions for the targets in use.
    #[inline(always)]
    pub fn carry_out<S: Simd>(&self, blocks: &mut [T]) {
        let width = <T::Vector<S> as SimdLane>::WIDTH;
        assert!(self.targets <= self.rows && blocks.len() == self.code.blocks * self.rows * SOURCES * width);
        let base = blocks.as_mut_ptr();
        for Instruction { step, args, to } in &self.code.instructions {
            assert!(*to < self.code.blocks);
            let mut from = self.arguments(args, width, base);
            let mut to = base.wrapping_add(to * self.rows * SOURCES * width);
            // `$count` arguments; `$result` is the vector number `$v` of the next target.
            macro_rules! each_vector {
                ($count:expr, |$v:ident| $result:expr) => {{
                    assert!(args.len() == $count);
                    let mut t = 0;
                    while t < self.targets {
                        for $v in 0..SOURCES {
                            // SAFETY: `arguments` finds blocks of rows × SOURCES vectors (`blocks` is that long), or
                            // SOURCES vectors and the distance 0; t < rows. There are as many arguments as are used. A
                            // vector is read before the vector at the same place is written.
                            unsafe { ($result).store(to.add($v * width)) };
                        }
                        from.advance($count);
                        to = to.wrapping_add(SOURCES * width);
                        t += 1;
                    }
                }};
            }
            macro_rules! each {
                (|$a:ident| $result:expr) => {
                    each_vector!(1, |v| {
                        let $a = from.load::<S>(0, v);
                        $result
                    })
                };
                (|$a:ident, $b:ident| $result:expr) => {
                    each_vector!(2, |v| {
                        let ($a, $b) = (from.load::<S>(0, v), from.load::<S>(1, v));
                        $result
                    })
                };
                (|$a:ident, $b:ident, $c:ident| $result:expr) => {
                    each_vector!(3, |v| {
                        let ($a, $b, $c) = (from.load::<S>(0, v), from.load::<S>(1, v), from.load::<S>(2, v));
                        $result
                    })
                };
            }
            macro_rules! products {
                ($plus:literal, $minus:literal) => {
                    each_vector!(2 * ($plus + $minus).max(1) - usize::from($plus + $minus == 0), |v| {
                        from.products::<S, $plus, $minus>(v)
                    })
                };
            }
            let flag = |mask| <T::Vector<S> as Lane>::select(mask, Lane::splat(1.0), Lane::splat(0.0));
            let zero = <T::Vector<S> as Lane>::splat(0.0);
            match step {
                Step::Sum(terms) => for_terms!(terms, products),
                Step::Product(3) => each!(|a, b, c| a * b * c),
                Step::Product(_) => {
                    each_vector!(4, |v| {
                        let (a, b, c) = (from.load::<S>(0, v), from.load::<S>(1, v), from.load::<S>(2, v));
                        (a * b) * (c * from.load::<S>(3, v))
                    })
                }
                Step::One(op) => match op {
                    Op::Add => each!(|a, b| a + b),
                    Op::Sub => each!(|a, b| a - b),
                    Op::Mul => each!(|a, b| a * b),
                    Op::Div => each!(|a, b| a / b),
                    Op::Neg => each!(|a| -a),
                    Op::Fma => each!(|a, b, c| a.mul_add(b, c)),
                    Op::Sqrt => each!(|a| a.sqrt()),
                    Op::Rsqrt => each!(|a| a.rsqrt()),
                    Op::Exp => each!(|a| a.exp()),
                    Op::Ln => each!(|a| a.ln()),
                    Op::Sin => each!(|a| a.sin()),
                    Op::Cos => each!(|a| a.cos()),
                    Op::Erf => each!(|a| a.erf()),
                    Op::BesselK0 => each!(|a| a.bessel_k0()),
                    Op::BesselK1 => each!(|a| a.bessel_k1()),
                    Op::Lt => each!(|a, b| flag(a.lt(b))),
                    Op::Le => each!(|a, b| flag(a.le(b))),
                    Op::Eq => each!(|a, b| flag(a.eq(b))),
                    Op::And => each!(|a, b| a * b),
                    Op::Or => each!(|a, b| flag(!(a + b).eq(zero))),
                    Op::Not => each!(|a| flag(a.eq(zero))),
                    Op::Select => each!(|a, b, c| Lane::select(a.eq(zero), c, b)),
                    Op::Parameter(_) | Op::Coordinate(_) | Op::Strength(_) | Op::Constant(_) => {}
                },
            }
        }
    }

    /// Adds the values to the sums of a set, times the strength if values are per unit of it. `itself` is the lane of
    /// target 0, which the target skips.
    #[inline(always)]
    pub fn add<S: Simd>(&self, itself: Option<f64>, blocks: &[T], sums: &mut [T]) {
        let width = <T::Vector<S> as SimdLane>::WIDTH;
        assert!(self.targets <= self.rows && blocks.len() == self.code.blocks * self.rows * SOURCES * width);
        let mut first = 0;
        while first < self.code.values.len() {
            let value = &self.code.values[first];
            if self.code.vectors[first] && itself.is_none() {
                let values = &self.code.values[first..first + Value::AXES];
                let sums = &mut sums[first * self.rows * width..][..Value::AXES * self.rows * width];
                first += Value::AXES;
                macro_rules! vector {
                    ($plus:literal, $minus:literal) => {
                        match self.code.unit {
                            true => self.add_vector::<S, $plus, $minus, true>(values, blocks, sums),
                            false => self.add_vector::<S, $plus, $minus, false>(values, blocks, sums),
                        }
                    };
                }
                for_terms!(value.terms, vector);
                continue;
            }
            let sums = &mut sums[first * self.rows * width..][..self.rows * width];
            first += 1;
            let from = self.arguments(&value.args, width, blocks.as_ptr());
            macro_rules! values {
                ($plus:literal, $minus:literal) => {{
                    let used = Terms { plus: $plus, minus: $minus };
                    assert!(value.args.len() == 2 * ($plus + $minus) + usize::from($plus + $minus == 0));
                    debug_assert!(used == value.terms);
                    match itself {
                        None if self.code.unit => self.add_value::<S, $plus, $minus, true, false>(from, 0.0, sums),
                        None => self.add_value::<S, $plus, $minus, false, false>(from, 0.0, sums),
                        Some(own) => self.add_value::<S, $plus, $minus, true, true>(from, own, sums),
                    }
                }};
            }
            for_terms!(value.terms, values);
        }
    }

    /// Adds three values to their sums: `PLUS` and `MINUS` products of a number that they have in common and a number
    /// of their own; with `FACTOR` times the strength.
    #[inline(always)]
    fn add_vector<S: Simd, const PLUS: usize, const MINUS: usize, const FACTOR: bool>(
        &self,
        values: &[Value],
        blocks: &[T],
        sums: &mut [T],
    ) {
        let width = <T::Vector<S> as SimdLane>::WIDTH;
        let (count, axes) = (PLUS + MINUS, Value::AXES);
        let (mut common, mut own) = ([Operand::Block(0); MOST_ARGS], [Operand::Block(0); MOST_ARGS]);
        assert!(values.len() == axes && count * axes <= MOST_ARGS && sums.len() == axes * self.rows * width);
        for k in 0..count {
            common[k] = values[0].args[2 * k];
            for i in 0..axes {
                own[axes * k + i] = values[i].args[2 * k + 1];
            }
        }
        let mut common = self.arguments(&common[..count], width, blocks.as_ptr());
        let mut own = self.arguments(&own[..axes * count], width, blocks.as_ptr());
        let mut factors = [<T::Vector<S> as Lane>::splat(1.0); SOURCES];
        if FACTOR {
            for v in 0..SOURCES {
                let vector = &self.strengths[v * width..][..width];
                // SAFETY: `vector` has `width` entries.
                factors[v] = unsafe { SimdLane::load(vector.as_ptr()) };
            }
        }
        let (first, rest) = sums.split_at_mut(self.rows * width);
        let (second, third) = rest.split_at_mut(self.rows * width);
        let mut t = 0;
        while t < self.targets {
            let range = t * width..(t + 1) * width;
            let to = [&mut first[range.clone()], &mut second[range.clone()], &mut third[range]];
            // SAFETY: the arguments are as in `carry_out`, and as many as are used; each of `to` has `width` entries.
            unsafe {
                let mut x = <T::Vector<S> as SimdLane>::load(to[0].as_ptr());
                let mut y = <T::Vector<S> as SimdLane>::load(to[1].as_ptr());
                let mut z = <T::Vector<S> as SimdLane>::load(to[2].as_ptr());
                for v in 0..SOURCES {
                    for k in 0..PLUS + MINUS {
                        let number = common.load::<S>(k, v);
                        let number = if k < PLUS { number } else { -number };
                        let number = if FACTOR { number * factors[v] } else { number };
                        x = number.mul_add(own.load::<S>(Value::AXES * k, v), x);
                        y = number.mul_add(own.load::<S>(Value::AXES * k + 1, v), y);
                        z = number.mul_add(own.load::<S>(Value::AXES * k + 2, v), z);
                    }
                }
                x.store(to[0].as_mut_ptr());
                y.store(to[1].as_mut_ptr());
                z.store(to[2].as_mut_ptr());
            }
            common.advance(count);
            own.advance(axes * count);
            t += 1;
        }
    }

    /// Adds one value to its sums: `PLUS` and `MINUS` products of the arguments; with `FACTOR` times the strength, or
    /// times 1; with `SKIP` without the lane of the target itself, `itself` for target 0.
    #[inline(always)]
    fn add_value<S: Simd, const PLUS: usize, const MINUS: usize, const FACTOR: bool, const SKIP: bool>(
        &self,
        mut from: Arguments<T>,
        itself: f64,
        sums: &mut [T],
    ) {
        let width = <T::Vector<S> as SimdLane>::WIDTH;
        let zero = <T::Vector<S> as Lane>::splat(0.0);
        let mut factors = [<T::Vector<S> as Lane>::splat(1.0); SOURCES];
        if FACTOR && self.code.unit {
            for v in 0..SOURCES {
                let vector = &self.strengths[v * width..][..width];
                // SAFETY: `vector` has `width` entries.
                factors[v] = unsafe { SimdLane::load(vector.as_ptr()) };
            }
        }
        let mut lanes = [T::default(); PAD];
        for i in 0..PAD {
            lanes[i] = T::of(i as f64);
        }
        // SAFETY: `lanes` has PAD entries, the widest vector.
        let lanes = unsafe { <T::Vector<S> as SimdLane>::load(lanes.as_ptr()) };
        let mut t = 0;
        while t < self.targets {
            let to = sums[t * width..][..width].as_mut_ptr();
            // SAFETY: the arguments are as in `carry_out`, and the caller has counted them; `to` has `width` entries.
            unsafe {
                let mut sum = <T::Vector<S> as SimdLane>::load(to);
                for v in 0..SOURCES {
                    if const { FACTOR || PLUS + MINUS == 0 } {
                        let mut u = from.products::<S, PLUS, MINUS>(v);
                        if SKIP {
                            let own = Lane::splat(itself + t as f64 - (v * width) as f64);
                            u = Lane::select(lanes.eq(own), zero, u);
                        }
                        sum = if FACTOR { u.mul_add(factors[v], sum) } else { sum + u };
                    } else {
                        sum = from.more::<S, PLUS, MINUS>(v, 0, sum);
                    }
                }
                sum.store(to);
            }
            from.advance(const { 2 * (PLUS + MINUS) + if PLUS + MINUS == 0 { 1 } else { 0 } });
            t += 1;
        }
    }
}
