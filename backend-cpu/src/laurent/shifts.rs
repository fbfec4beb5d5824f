//! M2M and L2L in the plane, one shift per lane. The rows of coefficients of several boxes run along the lanes.

use crate::lanes::Vectorized;
use adaptive2d::Pyramid;
use adaptive2d::complex::Complex;
use adaptive2d::laurent::{MAX_ORDER, shift};
use fmm_traits::{Edges, Lane, Simd, SimdLane};
use std::marker::PhantomData;
use std::ops::Range;

/// Most f64 lanes of a vector.
pub(super) const LANES: usize = 8;

/// The row of a lane without an edge.
pub(super) static ZEROS: [f64; 2 * (MAX_ORDER + 1)] = [0.0; 2 * (MAX_ORDER + 1)];

/// Loads one complex number per lane.
#[inline(always)]
fn load<V: SimdLane<Scalar = f64>>(re: &[f64; LANES], im: &[f64; LANES]) -> Complex<V> {
    // SAFETY: no vector has more than LANES lanes.
    unsafe { Complex::new(V::load(re.as_ptr()), V::load(im.as_ptr())) }
}

/// Coefficients of up to [`LANES`] rows, one row per lane: real part of coefficient 0, imaginary part, and so on.
pub(super) struct Columns([[f64; LANES]; 2 * (MAX_ORDER + 1)]);

impl Columns {
    pub fn new() -> Self {
        Columns([[0.0; LANES]; 2 * (MAX_ORDER + 1)])
    }
    /// Sets the first `length` numbers of all rows.
    #[inline(always)]
    pub fn set<S: Simd>(&mut self, rows: &[&[f64]; LANES], length: usize) {
        let rows = rows.map(|row| &row[..length]);
        let blocks = rows.map(|row| row.as_chunks::<LANES>());
        let (columns, rest) = self.0[..length].as_chunks_mut::<LANES>();
        for (i, columns) in columns.iter_mut().enumerate() {
            S::transpose(blocks.map(|(blocks, _)| &blocks[i]), columns);
        }
        for (j, column) in rest.iter_mut().enumerate() {
            *column = blocks.map(|(_, rest)| rest[j]);
        }
    }
    /// Coefficient `j`.
    #[inline(always)]
    pub fn get<V: SimdLane<Scalar = f64>>(&self, j: usize) -> Complex<V> {
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

/// Ratios of shifts, one shift per lane. ρ_c and ρ_p are the scales of child and parent, r is the vector between their
/// centres.
#[derive(Default)]
struct Ratios {
    /// Re and Im of ρ_c/r, or 0 if the scaled form does not apply.
    u: [[f64; LANES]; 2],
    /// Re and Im of r/ρ_p.
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

/// The vector from the centre of box `to` to the centre of box `from`.
fn between(pyramid: &Pyramid, to: usize, from: usize) -> Complex<f64> {
    let (a, b) = (pyramid.center[from], pyramid.center[to]);
    Complex::new(a[0] - b[0], a[1] - b[1])
}

/// A direction of shifts along the pyramid: [`Up`] or [`Down`].
pub(super) trait Along: Send + Sync {
    /// Whether series go from children to parents.
    const UP: bool;
    /// The scaled form of the shift, for centres that are not too close.
    fn scaled<V: Lane>(a: &mut [Complex<V>], u: Complex<V>, v: Complex<V>);
    /// The form of the shift for any distance of centres.
    fn plain<V: Lane>(a: &mut [Complex<V>], t: V, v: Complex<V>);
}

/// M2M: children → parents.
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

/// L2L: parents → children.
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

/// Shifts along the pyramid into `boxes`. Adds to the rows `to` of these boxes.
pub(super) struct Shifts<'a, A> {
    pub pyramid: &'a Pyramid,
    pub edges: &'a Edges,
    pub order: usize,
    /// Rows of the boxes from which series come.
    pub from: &'a [f64],
    /// The box of the first row of `from`.
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
        // Edges in the order of the rows, one per lane.
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
            columns.set::<S>(&rows, width);
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
