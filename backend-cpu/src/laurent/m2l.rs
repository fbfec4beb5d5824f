//! M2L: an edge per lane, each with as many terms as its boxes need.

use super::shifts::{Columns, LANES, ZEROS};
use crate::lanes::Vectorized;
use adaptive2d::Pyramid;
use adaptive2d::complex::Complex;
use adaptive2d::laurent::{MAX_ORDER, shift};
use fmm_traits::{Edges, Lane, Simd, SimdLane};
use std::ops::Range;

/// Outputs that [`Hankel`] keeps in registers.
const OUTPUTS: usize = 6;

/// The constant middle of algorithm 3.6: b_j = Σ_k C(j + k − 1, j) a_k, a Hankel-like matrix.
///
/// As p² multiply-adds in registers it is as many operations as the additions of the algorithm, which would run
/// through memory, and a machine that does as many multiply-adds as additions a cycle gains nothing from these.
#[derive(Clone, Debug)]
pub(super) struct Hankel {
    /// `[j / OUTPUTS][k − 1][j % OUTPUTS]`.
    table: Vec<[f64; OUTPUTS]>,
    order: usize,
}

impl Hankel {
    /// For order p.
    pub fn new(order: usize) -> Self {
        let mut table = Vec::new();
        for block in 0..(order + 1).div_ceil(OUTPUTS) {
            for k in 1..=order {
                table.push(std::array::from_fn(|i| {
                    let j = block * OUTPUTS + i;
                    if j > order { 0.0 } else { (1..=j).fold(1.0, |c, i| c * (k - 1 + i) as f64 / i as f64) }
                }));
            }
        }
        Hankel { table, order }
    }

    /// Calls `take(j, b_j)`, j = 0 … q, for `a` = a_1 … a_q, q ≤ p.
    #[inline(always)]
    fn apply<V: Lane>(&self, a: &[Complex<V>], mut take: impl FnMut(usize, Complex<V>)) {
        let q = a.len();
        for (block, rows) in self.table.chunks_exact(self.order).take(q / OUTPUTS + 1).enumerate() {
            let mut sums = [Complex::<V>::zero(); OUTPUTS];
            for (a, row) in a.iter().zip(rows) {
                for i in 0..OUTPUTS {
                    let h = V::splat(row[i]);
                    sums[i] = Complex::new(h.mul_add(a.re, sums[i].re), h.mul_add(a.im, sums[i].im));
                }
            }
            for i in 0..OUTPUTS {
                if block * OUTPUTS + i <= q {
                    take(block * OUTPUTS + i, sums[i]);
                }
            }
        }
    }
}

/// How many terms an edge carries. What q terms leave out of a multipole is of the size (r_s/(d − r_t))^q, and of a local
/// (r_t/(d − r_s))^q; the larger is e^q with e = R/(d − r) for the larger radius R and the smaller r. The θ-criterion (eq. 2.1)
/// says e ≤ θ; most pairs are farther apart, and need fewer than p terms for θ^p.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    /// By e·[`BINS`], for the upper end of the bin.
    by_ratio: [u8; BINS],
    order: usize,
}

/// What distant pairs stay below θ^p by: where they reach just θ^p, all are as bad as the few that touch the criterion, and a sum of a
/// million uniform points has 12 times the error.
const MARGIN: f64 = 12.0;
/// Ratios that are told apart.
const BINS: usize = 256;

impl Terms {
    /// All terms on every edge.
    pub fn all(order: usize) -> Self {
        Terms { by_ratio: [order as u8; BINS], order }
    }

    /// As many as reach θ^order/[`MARGIN`].
    pub fn reaching(theta: f64, order: usize) -> Self {
        let terms = |bin: usize| {
            let ratio = (bin + 1) as f64 / BINS as f64;
            let terms = ((order as f64 * theta.ln() - MARGIN.ln()) / ratio.ln()).ceil();
            if ratio < theta { terms.clamp(1.0, order as f64) as u8 } else { order as u8 }
        };
        Terms { by_ratio: std::array::from_fn(terms), order }
    }

    /// Of boxes of the given radii, the square of the distance of whose centres is `square`.
    #[inline(always)]
    fn of(&self, a: f64, b: f64, square: f64) -> usize {
        let (small, large) = if a < b { (a, b) } else { (b, a) };
        let ratio = large / (square.sqrt() - small);
        // Lists of other criteria may hold boxes that touch.
        if (0.0..1.0).contains(&ratio) { self.by_ratio[(ratio * BINS as f64) as usize] as usize } else { self.order }
    }
}

/// The sources of one row, those with most terms first.
#[derive(Default)]
struct Sorted {
    terms: Vec<u8>,
    /// (source, its terms).
    edges: Vec<(u32, u8)>,
}

impl Sorted {
    /// Sorts `row` by counting; edges of as many terms stay in their order.
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

/// Multipole → local of the rows `targets`, whose first is the first of `locals`; sets these rows.
pub(super) struct M2l<'a> {
    pub pyramid: &'a Pyramid,
    pub edges: &'a Edges,
    pub hankel: &'a Hankel,
    pub terms: &'a Terms,
    pub multipoles: &'a [f64],
    pub targets: Range<usize>,
    pub locals: &'a mut [f64],
    /// Whether there is an a_0.
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
                // r, ρ_i and ρ_o by lane; a lane without an edge has lengths and coefficients 0.
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
