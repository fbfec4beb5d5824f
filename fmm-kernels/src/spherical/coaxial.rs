//! Translations along z, where each m goes with itself only.
//!
//! In the basis of this module the entries of Gumerov & Duraiswami (2008), eqs. 18–19, for a unit distance are
//!
//! * M2M, from k to n ≥ k: √(C(n + m, k + m) C(n − m, k − m)); L2L, from n to k ≤ n, is its transpose;
//! * M2L, from k to n: (−1)^(n+m) √(C(n + k, n + m) C(n + k, n − m)),
//!
//! for cosines and sines alike. Other distances and sides are scalings by powers of the degree before and
//! after (eq. 35), so that one set of tables serves all.

use super::basis::{cosine, sine};
use fmm_traits::{Real, SimdLane};
use std::ops::Range;

/// Which translation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// M2M: multipole of a child → multipole of its parent.
    Up,
    /// M2L: multipole → local.
    Across,
    /// L2L: local of a parent → local of a child.
    Down,
}

/// The tables of one order.
#[derive(Clone, Debug)]
pub struct Coaxial<T> {
    order: usize,
    /// For each m, (order − m)² numbers: row n − m, column k − m.
    up: Vec<T>,
    across: Vec<T>,
}

/// √C(n, k), in f64.
fn root_binomial(n: usize, k: usize) -> f64 {
    let k = k.min(n - k);
    (1..=k).map(|i| (n - k + i) as f64 / i as f64).product::<f64>().sqrt()
}

impl<T: Real> Coaxial<T> {
    /// Tables for expansions up to `order`.
    pub fn new(order: usize) -> Self {
        let mut tables = Coaxial { order, up: Vec::new(), across: Vec::new() };
        for m in 0..order {
            for n in m..order {
                for k in m..order {
                    let up = if k <= n { root_binomial(n + m, k + m) * root_binomial(n - m, k - m) } else { 0.0 };
                    tables.up.push(T::of(up));
                    let sign = if (n + m).is_multiple_of(2) { 1.0 } else { -1.0 };
                    tables.across.push(T::of(sign * root_binomial(n + k, n + m) * root_binomial(n + k, n - m)));
                }
            }
        }
        tables
    }

    /// `to` ← translation of `from` by a unit distance along z; orders read and written.
    #[inline(always)]
    pub fn apply<V: SimdLane<Scalar = T>>(&self, step: Step, [read, write]: [usize; 2], from: &[V], to: &mut [V]) {
        match step {
            Step::Up => product(&self.up, self.order, write, |width| (width, 1), |m, n| m..n + 1, from, to),
            Step::Across => product(&self.across, self.order, write, |width| (width, 1), |m, _| m..read, from, to),
            Step::Down => product(&self.up, self.order, write, |width| (1, width), |_, n| n..read, from, to),
        }
    }
}

/// The product for each m with a block of `table`, whose entry (n, k) lies at the strides that `strides` tells for the
/// width of the block; k in `columns(m, n)`.
#[inline(always)]
fn product<V: SimdLane>(
    table: &[V::Scalar],
    order: usize,
    write: usize,
    strides: impl Fn(usize) -> (usize, usize),
    columns: impl Fn(usize, usize) -> Range<usize>,
    from: &[V],
    to: &mut [V],
) {
    let mut rest = table;
    for m in 0..write {
        let width = order - m;
        let (block, more) = rest.split_at(width * width);
        rest = more;
        let (row, column) = strides(width);
        for n in m..write {
            let (mut c, mut s) = (V::splat(0.0), V::splat(0.0));
            for k in columns(m, n) {
                let entry = V::broadcast(block[(n - m) * row + (k - m) * column]);
                c = entry.mul_add(from[cosine(k, m)], c);
                if m > 0 {
                    s = entry.mul_add(from[sine(k, m)], s);
                }
            }
            to[cosine(n, m)] = c;
            if m > 0 {
                to[sine(n, m)] = s;
            }
        }
    }
}
