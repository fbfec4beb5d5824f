//! M2M, M2L and L2L: a shift per lane.

use crate::lanes::Vectorized;
use adaptive2d::Pyramid;
use adaptive2d::complex::Complex;
use adaptive2d::laurent::{MAX_ORDER, shift};
use fmm_traits::{Edges, Lane, Simd, SimdLane};
use std::marker::PhantomData;
use std::ops::Range;

/// Most lanes of a vector.
const LANES: usize = 8;
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

    /// Calls `take(j, b_j)`, j = 0 … p, for `a` = a_1 … a_p.
    #[inline(always)]
    fn apply<V: Lane>(&self, a: &[Complex<V>], mut take: impl FnMut(usize, Complex<V>)) {
        let p = self.order;
        for (block, rows) in self.table.chunks_exact(p).enumerate() {
            let mut sums = [Complex::<V>::zero(); OUTPUTS];
            for (a, row) in a.iter().zip(rows) {
                for i in 0..OUTPUTS {
                    let h = V::splat(row[i]);
                    sums[i] = Complex::new(h.mul_add(a.re, sums[i].re), h.mul_add(a.im, sums[i].im));
                }
            }
            for i in 0..OUTPUTS {
                if block * OUTPUTS + i <= p {
                    take(block * OUTPUTS + i, sums[i]);
                }
            }
        }
    }
}

/// The row of a lane without an edge.
static ZEROS: [f64; 2 * (MAX_ORDER + 1)] = [0.0; 2 * (MAX_ORDER + 1)];

/// One complex number a lane.
#[inline(always)]
fn load<V: SimdLane<Scalar = f64>>(re: &[f64; LANES], im: &[f64; LANES]) -> Complex<V> {
    // SAFETY: no vector has more than LANES lanes.
    unsafe { Complex::new(V::load(re.as_ptr()), V::load(im.as_ptr())) }
}

/// Coefficients of up to `LANES` rows, one row a lane.
struct Columns([[f64; LANES]; 2 * (MAX_ORDER + 1)]);

impl Columns {
    fn new() -> Self {
        Columns([[0.0; LANES]; 2 * (MAX_ORDER + 1)])
    }
    /// All rows, of one length.
    #[inline(always)]
    fn set(&mut self, rows: &[&[f64]; LANES], length: usize) {
        let rows = rows.map(|row| &row[..length]);
        for (j, column) in self.0[..length].iter_mut().enumerate() {
            *column = std::array::from_fn(|lane| rows[lane][j]);
        }
    }
    /// Coefficient `j`.
    #[inline(always)]
    fn get<V: SimdLane<Scalar = f64>>(&self, j: usize) -> Complex<V> {
        load(&self.0[2 * j], &self.0[2 * j + 1])
    }
    /// Replaces coefficient `j`.
    #[inline(always)]
    fn put<V: SimdLane<Scalar = f64>>(&mut self, j: usize, a: Complex<V>) {
        // SAFETY: as in `load`.
        unsafe {
            a.re.store(self.0[2 * j].as_mut_ptr());
            a.im.store(self.0[2 * j + 1].as_mut_ptr());
        }
    }
    /// Adds row `lane` to `row`.
    #[inline(always)]
    fn add_to(&self, lane: usize, row: &mut [f64]) {
        for (x, column) in row.iter_mut().zip(&self.0) {
            *x += column[lane];
        }
    }
}

/// Ratios of one shift, one lane each.
#[derive(Default)]
struct Ratios {
    u: [[f64; LANES]; 2],
    v: [[f64; LANES]; 2],
    /// ρ_c/ρ_p.
    t: [f64; LANES],
}

impl Ratios {
    fn set(&mut self, lane: usize, u: Complex<f64>, v: Complex<f64>, t: f64) {
        for (to, z) in [(&mut self.u, u), (&mut self.v, v)] {
            to[0][lane] = z.re;
            to[1][lane] = z.im;
        }
        self.t[lane] = t;
    }
    #[inline(always)]
    fn get<V: SimdLane<Scalar = f64>>(&self) -> (Complex<V>, Complex<V>, V) {
        // SAFETY: as in `load`.
        let t = unsafe { V::load(self.t.as_ptr()) };
        (load(&self.u[0], &self.u[1]), load(&self.v[0], &self.v[1]), t)
    }
}

/// From the centre of `to` to that of `from`.
fn between(pyramid: &Pyramid, to: usize, from: usize) -> Complex<f64> {
    let (a, b) = (pyramid.center[from], pyramid.center[to]);
    Complex::new(a[0] - b[0], a[1] - b[1])
}

/// Multipole → local of the rows `targets`, whose first is the first of `locals`; sets these rows.
pub(super) struct M2l<'a> {
    pub pyramid: &'a Pyramid,
    pub edges: &'a Edges,
    pub hankel: &'a Hankel,
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
        for (t, local) in self.targets.zip(self.locals.chunks_exact_mut(width)) {
            let row = self.edges.row(t);
            if row.is_empty() {
                local.fill(0.0);
                continue;
            }
            sums[..=p].fill(Complex::zero());
            let (scale, center) = (self.pyramid.scale(t), self.pyramid.center[t]);
            let mut rows = [&ZEROS[..width]; LANES];
            for sources in row.chunks(S::F64::WIDTH) {
                // r, ρ_i and ρ_o by lane; a lane without an edge has lengths and coefficients 0.
                let mut lanes = [[1.0, 1.0, 0.0, 0.0]; LANES];
                for lane in 0..S::F64::WIDTH {
                    rows[lane] = match sources.get(lane) {
                        Some(&s) => {
                            let s = s as usize;
                            let from = self.pyramid.center[s];
                            lanes[lane] = [from[0] - center[0], from[1] - center[1], self.pyramid.scale(s), scale];
                            &self.multipoles[s * width..(s + 1) * width]
                        }
                        None => &ZEROS[..width],
                    };
                }
                columns.set(&rows, width);
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
                for j in 1..=p {
                    scaled[j - 1] = columns.get::<S::F64>(j) * power;
                    power = power * step;
                }
                let mut power = Complex::one();
                if self.logarithms {
                    let a0 = columns.get::<S::F64>(0);
                    sums[0] += a0.scaled(S::F64::splat(0.5) * square.ln());
                    self.hankel.apply(&scaled[..p], |j, b| {
                        let b = b - a0.scaled(S::F64::splat(shift::INVERSES[j]));
                        sums[j] = b.mul_add(power, sums[j]);
                        power = power * v;
                    });
                } else {
                    self.hankel.apply(&scaled[..p], |j, b| {
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

/// Which of the two shifts along the pyramid.
pub(super) trait Along: Send + Sync {
    /// Whether series go from children to parents.
    const UP: bool;
    /// The scaled form.
    fn scaled<V: Lane>(a: &mut [Complex<V>], u: Complex<V>, v: Complex<V>);
    /// The form for any distance of centres.
    fn plain<V: Lane>(a: &mut [Complex<V>], t: V, v: Complex<V>);
}

/// Children → parents.
pub(super) struct Up;
impl Along for Up {
    const UP: bool = true;
    #[inline(always)]
    fn scaled<V: Lane>(a: &mut [Complex<V>], u: Complex<V>, v: Complex<V>) {
        shift::m2m(a, u, v);
    }
    #[inline(always)]
    fn plain<V: Lane>(a: &mut [Complex<V>], t: V, v: Complex<V>) {
        shift::m2m_plain(a, t, v);
    }
}

/// Parents → children.
pub(super) struct Down;
impl Along for Down {
    const UP: bool = false;
    #[inline(always)]
    fn scaled<V: Lane>(a: &mut [Complex<V>], u: Complex<V>, v: Complex<V>) {
        shift::l2l(a, u, v);
    }
    #[inline(always)]
    fn plain<V: Lane>(a: &mut [Complex<V>], t: V, v: Complex<V>) {
        shift::l2l_plain(a, t, v);
    }
}

/// Shifts along the pyramid into the rows `boxes`, whose first is the first of `to`.
pub(super) struct Shifts<'a, A> {
    pub pyramid: &'a Pyramid,
    pub edges: &'a Edges,
    pub order: usize,
    /// Rows of the boxes from which series come; the first is that of box `first`.
    pub from: &'a [f64],
    pub first: usize,
    pub boxes: Range<usize>,
    pub to: &'a mut [f64],
    pub _a: PhantomData<A>,
}

impl<A: Along> Vectorized for Shifts<'_, A> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let p = self.order;
        let width = 2 * (p + 1);
        let largest = shift::largest_ratio(p);
        let mut columns = Columns::new();
        let mut ratios = Ratios::default();
        let mut a = [Complex::<S::F64>::zero(); MAX_ORDER + 1];
        let start = self.boxes.start;
        // Edges in the order of the rows; a lane each.
        let mut edges = self.boxes.flat_map(|b| self.edges.row(b).iter().map(move |&s| (b, s as usize)));
        let mut lanes = [(0, 0); LANES];
        let mut rows = [&ZEROS[..width]; LANES];
        loop {
            let count = (&mut edges).take(S::F64::WIDTH).zip(&mut lanes).map(|(e, lane)| *lane = e).count();
            if count == 0 {
                return;
            }
            let mut scaled = true;
            for lane in 0..S::F64::WIDTH {
                if lane >= count {
                    ratios.set(lane, Complex::zero(), Complex::zero(), 0.0);
                    rows[lane] = &ZEROS[..width];
                    continue;
                }
                let (to, from) = lanes[lane];
                let (child, parent) = if A::UP { (from, to) } else { (to, from) };
                let r = between(self.pyramid, to, from);
                let (small, large) = (self.pyramid.scale(child), self.pyramid.scale(parent));
                let ratio = r.scaled(small.recip());
                let far = ratio.square().sqrt() * largest > 1.0;
                scaled &= far;
                let u = if far { ratio.inverse() } else { Complex::zero() };
                ratios.set(lane, u, r.scaled(large.recip()), small / large);
                rows[lane] = &self.from[(from - self.first) * width..][..width];
            }
            columns.set(&rows, width);
            for j in 0..=p {
                a[j] = columns.get(j);
            }
            let (u, v, t) = ratios.get::<S::F64>();
            if scaled {
                A::scaled(&mut a[..=p], u, v);
            } else {
                A::plain(&mut a[..=p], t, v);
            }
            for j in 0..=p {
                columns.put(j, a[j]);
            }
            for (lane, &(to, _)) in lanes[..count].iter().enumerate() {
                columns.add_to(lane, &mut self.to[(to - start) * width..][..width]);
            }
        }
    }
}
