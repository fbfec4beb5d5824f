//! M2L in the plane: one edge per lane, with as many terms as its boxes need.

use super::shifts::{Columns, LANES, ZEROS};
use crate::lanes::Vectorized;
use adaptive2d::Pyramid;
use adaptive2d::complex::Complex;
use adaptive2d::laurent::{MAX_ORDER, shift};
use fmm_traits::{Edges, Lane, Simd, SimdLane};
use std::ops::Range;

/// Outputs b_j that [`Hankel`] keeps in registers at once.
const OUTPUTS_IN_REGISTERS: usize = 6;

/// The constant middle part of algorithm 3.6: b_j = Σ_k C(j + k − 1, j) a_k, a Hankel-like matrix.
///
/// The product takes p² multiply-adds in registers. The algorithm takes as many additions, but through memory. On a
/// machine that does as many multiply-adds as additions per cycle, additions gain nothing.
#[derive(Clone, Debug)]
pub(super) struct Hankel {
    /// `[j / OUTPUTS_IN_REGISTERS][k − 1][j % OUTPUTS_IN_REGISTERS]`.
    table: Vec<[f64; OUTPUTS_IN_REGISTERS]>,
    order: usize,
}

impl Hankel {
    /// The matrix for order p.
    pub fn new(order: usize) -> Self {
        let mut table = Vec::new();
        for block in 0..(order + 1).div_ceil(OUTPUTS_IN_REGISTERS) {
            for k in 1..=order {
                table.push(std::array::from_fn(|i| {
                    let j = block * OUTPUTS_IN_REGISTERS + i;
                    if j > order { 0.0 } else { (1..=j).fold(1.0, |c, i| c * (k - 1 + i) as f64 / i as f64) }
                }));
            }
        }
        Hankel { table, order }
    }

    /// Calls `take(j, b_j)` for j = 0 … q, where `a` = a_1 … a_q and q ≤ p.
    #[inline(always)]
    fn apply<V: Lane>(&self, a: &[Complex<V>], mut take: impl FnMut(usize, Complex<V>)) {
        let q = a.len();
        for (block, rows) in self.table.chunks_exact(self.order).take(q / OUTPUTS_IN_REGISTERS + 1).enumerate() {
            let mut sums = [Complex::<V>::zero(); OUTPUTS_IN_REGISTERS];
            for (a, row) in a.iter().zip(rows) {
                for i in 0..OUTPUTS_IN_REGISTERS {
                    let h = V::splat(row[i]);
                    sums[i] = Complex::new(h.mul_add(a.re, sums[i].re), h.mul_add(a.im, sums[i].im));
                }
            }
            for i in 0..OUTPUTS_IN_REGISTERS {
                if block * OUTPUTS_IN_REGISTERS + i <= q {
                    take(block * OUTPUTS_IN_REGISTERS + i, sums[i]);
                }
            }
        }
    }
}

/// The number of terms of an M2L edge. Let r_s and r_t be the radii of source and target, and d the distance of their
/// centres. Truncation after q terms leaves an error of the size (r_s/(d − r_t))^q for a multipole and
/// (r_t/(d − r_s))^q for a local. The larger error is e^q with e = R/(d − r), where R is the larger radius and r the
/// smaller. The θ-criterion (eq. 2.1) is e ≤ θ. Most pairs are farther apart and need fewer than p terms for an error
/// of θ^p.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    /// Number of terms by e·[`RATIO_BINS`], enough for the upper end of each bin.
    by_ratio: [u8; RATIO_BINS],
    order: usize,
}

/// Factor by which the truncation error of distant pairs stays below θ^p. If distant pairs only reached θ^p, all pairs
/// would be as inaccurate as the few that touch the criterion: a sum over a million uniform points would have 12 times
/// the error.
const ERROR_MARGIN: f64 = 12.0;
/// Number of bins for the ratio e in [0, 1).
const RATIO_BINS: usize = 256;

impl Terms {
    /// All terms on every edge.
    pub fn all(order: usize) -> Self {
        Terms { by_ratio: [order as u8; RATIO_BINS], order }
    }

    /// As many terms as reach an error of θ^order/[`ERROR_MARGIN`].
    pub fn reaching(theta: f64, order: usize) -> Self {
        let terms = |bin: usize| {
            let ratio = (bin + 1) as f64 / RATIO_BINS as f64;
            let terms = ((order as f64 * theta.ln() - ERROR_MARGIN.ln()) / ratio.ln()).ceil();
            if ratio < theta { terms.clamp(1.0, order as f64) as u8 } else { order as u8 }
        };
        Terms { by_ratio: std::array::from_fn(terms), order }
    }

    /// The number of terms between boxes of radii `a` and `b`. `square` is the squared distance of their centres.
    #[inline(always)]
    fn of(&self, a: f64, b: f64, square: f64) -> usize {
        let (small, large) = if a < b { (a, b) } else { (b, a) };
        let ratio = large / (square.sqrt() - small);
        // Lists made by another criterion may have edges between boxes that touch.
        if (0.0..1.0).contains(&ratio) {
            self.by_ratio[(ratio * RATIO_BINS as f64) as usize] as usize
        } else {
            self.order
        }
    }
}

/// The sources of one row, sorted by falling number of terms.
#[derive(Default)]
struct Sorted {
    terms: Vec<u8>,
    /// (source, number of terms).
    edges: Vec<(u32, u8)>,
}

impl Sorted {
    /// Sorts `row` by counting. Edges with the same number of terms keep their order.
    #[inline(always)]
    fn set(&mut self, row: &[u32], terms: impl Fn(u32) -> usize) {
        let mut first = [0u32; MAX_ORDER + 2];
        self.terms.clear();
        for &s in row {
            let terms = terms(s);
            self.terms.push(terms as u8);
            first[terms] += 1;
        }
        let mut before = 0;
        for count in first.iter_mut().rev() {
            (*count, before) = (before, before + *count);
        }
        self.edges.resize(row.len(), (0, 0));
        for (&s, &terms) in row.iter().zip(&self.terms) {
            let to = &mut first[terms as usize];
            self.edges[*to as usize] = (s, terms);
            *to += 1;
        }
    }
}

/// M2L into the boxes `targets`. Overwrites `locals`, the rows of these boxes.
pub(super) struct M2l<'a> {
    pub pyramid: &'a Pyramid,
    pub edges: &'a Edges,
    pub hankel: &'a Hankel,
    pub terms: &'a Terms,
    pub multipoles: &'a [f64],
    pub targets: Range<usize>,
    pub locals: &'a mut [f64],
    /// Whether the kernel has logarithms, so that multipoles have a coefficient a_0.
    pub logarithms: bool,
}

impl Vectorized for M2l<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let p = self.hankel.order;
        let width = 2 * (p + 1);
        let mut columns = Columns::new();
        let mut scaled = [Complex::<S::F64>::zero(); MAX_ORDER];
        let mut sums = [Complex::<S::F64>::zero(); MAX_ORDER + 1];
        let mut sorted = Sorted::default();
        for (t, local) in self.targets.zip(self.locals.chunks_exact_mut(width)) {
            let row = self.edges.row(t);
            if row.is_empty() {
                local.fill(0.0);
                continue;
            }
            sums[..=p].fill(Complex::zero());
            let (scale, center) = (self.pyramid.scale(t), self.pyramid.center[t]);
            let between = |s: u32| {
                let from = self.pyramid.center[s as usize];
                [from[0] - center[0], from[1] - center[1]]
            };
            sorted.set(row, |s| {
                let [x, y] = between(s);
                self.terms.of(scale, self.pyramid.scale(s as usize), x * x + y * y)
            });
            for sources in sorted.edges.chunks(S::F64::WIDTH) {
                let q = sources[0].1 as usize;
                let length = 2 * (q + 1);
                // Re r, Im r, scale of the source and scale of the target, by lane. A lane without an edge has scales
                // and coefficients 0.
                let mut rows = [&ZEROS[..length]; LANES];
                let mut lanes = [[1.0, 1.0, 0.0, 0.0]; LANES];
                for (lane, &(s, _)) in sources.iter().enumerate() {
                    let [x, y] = between(s);
                    let s = s as usize;
                    lanes[lane] = [x, y, self.pyramid.scale(s), scale];
                    rows[lane] = &self.multipoles[s * width..][..length];
                }
                columns.set::<S>(&rows, length);
                let number = |i: usize| {
                    let number: [f64; LANES] = std::array::from_fn(|lane| lanes[lane][i]);
                    // SAFETY: no vector has more than LANES lanes.
                    unsafe { S::F64::load(number.as_ptr()) }
                };
                let r = Complex::new(number(0), number(1));
                let square = r.square();
                let w = square.inverse::<false>();
                let conjugate = Complex::new(r.re, -r.im);
                let (u, v) = (conjugate.scaled(number(2) * w), conjugate.scaled(number(3) * w));
                let step = Complex::zero() - u;
                let mut power = step;
                for j in 1..=q {
                    scaled[j - 1] = columns.get::<S::F64>(j) * power;
                    power = power * step;
                }
                let mut power = Complex::one();
                if self.logarithms {
                    let a0 = columns.get::<S::F64>(0);
                    sums[0] += a0.scaled(S::F64::splat(0.5) * square.ln());
                    self.hankel.apply(&scaled[..q], |j, b| {
                        let b = b - a0.scaled(S::F64::splat(shift::INVERSES[j]));
                        sums[j] = b.mul_add(power, sums[j]);
                        power = power * v;
                    });
                } else {
                    self.hankel.apply(&scaled[..q], |j, b| {
                        sums[j] = b.mul_add(power, sums[j]);
                        power = power * v;
                    });
                }
            }
            for (sum, x) in sums.iter().zip(local.chunks_exact_mut(2)) {
                x[0] = sum.re.sum();
                x[1] = sum.im.sum();
            }
        }
    }
}
