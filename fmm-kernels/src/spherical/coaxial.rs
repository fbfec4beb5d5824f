//! Translations along z. They do not mix entries of different m.
//!
//! In the basis of this module the entries of Gumerov & Duraiswami (2008), eqs. 18–19, for a unit distance are
//!
//! * M2M, from k to n ≥ k: √(C(n + m, k + m) C(n − m, k − m)); L2L, from n to k ≤ n, is its transpose;
//! * M2L, from k to n: (−1)^(n+m) √(C(n + k, n + m) C(n + k, n − m)),
//!
//! for cosines and sines alike. Other distances and sides only scale each degree n by the n-th power of a ratio, before
//! and after (eq. 35), so one set of tables serves all.

use super::basis::column;
use fmm_traits::{Real, SimdLane};

/// The three kinds of translation.
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
    /// `up`, each block transposed.
    down: Vec<T>,
}

/// √C(n, k), in f64.
fn root_binomial(n: usize, k: usize) -> f64 {
    let k = k.min(n - k);
    (1..=k).map(|i| (n - k + i) as f64 / i as f64).product::<f64>().sqrt()
}

/// The M2M entry from degree k to degree n, 0 for k > n.
fn up(n: usize, k: usize, m: usize) -> f64 {
    if k <= n { root_binomial(n + m, k + m) * root_binomial(n - m, k - m) } else { 0.0 }
}

impl<T: Real> Coaxial<T> {
    /// Tables for expansions up to `order`.
    pub fn new(order: usize) -> Self {
        let mut tables = Coaxial { order, up: Vec::new(), across: Vec::new(), down: Vec::new() };
        for m in 0..order {
            for n in m..order {
                for k in m..order {
                    tables.up.push(T::of(up(n, k, m)));
                    tables.down.push(T::of(up(k, n, m)));
                    let sign = if (n + m).is_multiple_of(2) { 1.0 } else { -1.0 };
                    tables.across.push(T::of(sign * root_binomial(n + k, n + m) * root_binomial(n + k, n - m)));
                }
            }
        }
        tables
    }

    /// The matrix of a step for one m: (order − m)² numbers, row by row. Row i and column k take degree m + k to degree
    /// m + i.
    pub fn block(&self, step: Step, m: usize) -> &[T] {
        let before: usize = (0..m).map(|k| (self.order - k).pow(2)).sum();
        &self.table(step)[before..][..(self.order - m).pow(2)]
    }

    fn table(&self, step: Step) -> &[T] {
        if step == Step::Across {
            &self.across
        } else if step == Step::Up {
            &self.up
        } else {
            &self.down
        }
    }

    /// `to` ← translation of `from` by a unit distance along z. `read` and `write` are the orders of `from` and `to`.
    /// Both rows are sorted by m ([`column()`]); only m below both orders are written.
    #[inline(always)]
    pub fn apply<V: SimdLane<Scalar = T>>(&self, step: Step, [read, write]: [usize; 2], from: &[V], to: &mut [V]) {
        let p = self.order;
        let mut rest = self.table(step);
        for m in 0..read.min(write) {
            let width = p - m;
            let (block, more) = rest.split_at(width * width);
            rest = more;
            let (count, rows) = (read - m, write - m);
            let from = &from[column(p, m)..];
            let (c, s) = if m > 0 { (&from[..count], &from[width..][..count]) } else { (&from[..count], &from[..0]) };
            let to = &mut to[column(p, m)..];
            for i in (0..rows).step_by(2) {
                // M2M and L2L matrices are triangular: the other entries are zero.
                let (begin, end) = match step {
                    Step::Across => (0, count),
                    Step::Up => (0, count.min(i + 2)),
                    Step::Down => (i.min(count), count),
                };
                let two = i + 1 < rows;
                let first = &block[i * width..][begin..end];
                let second = if two { &block[(i + 1) * width..][begin..end] } else { first };
                let sums = pair(first, second, &c[begin..end]);
                to[i] = sums[0];
                if two {
                    to[i + 1] = sums[1];
                }
                if m > 0 {
                    let sums = pair(first, second, &s[begin..end]);
                    to[width + i] = sums[0];
                    if two {
                        to[width + i + 1] = sums[1];
                    }
                }
            }
        }
    }
}

/// The products of two rows with `x`.
#[inline(always)]
fn pair<V: SimdLane>(first: &[V::Scalar], second: &[V::Scalar], x: &[V]) -> [V; 2] {
    let mut sums = [V::splat(0.0); 2];
    for ((&a, &b), &x) in first.iter().zip(second).zip(x) {
        sums = [V::broadcast(a).mul_add(x, sums[0]), V::broadcast(b).mul_add(x, sums[1])];
    }
    sums
}
