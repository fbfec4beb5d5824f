//! Three-dimensional real Fourier transforms of several boxes at once, one box per lane. In the plane the axis x of this
//! module has one point and one frequency, and the grid's axes are those of [`Grid::axes`].
//!
//! A lattice of order p fills p of the n = 2p − 1 points of each axis. A line of a forward transform therefore has p
//! inputs and n outputs, and a line of an inverse transform has n inputs and p outputs. Each line is a plain sum over
//! cosines and sines. Frequencies k and n − k share their products, and zero lines are left out. At these lengths the
//! plain sum costs about as much as a fast transform of the full cube, and it fills the vectors of the machine. (A fast
//! transform generic over lanes was no faster at p ≤ 8, and its 31 fixed-length routines took minutes to compile.)
//!
//! A real value occupies [`Dft::lanes`] scalars. A complex value occupies twice as many: real parts, then imaginary
//! parts. Entry `(ky·half + kz)·layers + kx` of a spectrum is frequency (kx, ky, kz), the order in which the last pass
//! writes the spectrum. [`frequency`] gives the place in [`fmm_kernels::equivalent::spectra`]. Neither direction is
//! scaled.

use super::families::FAMILY;
use crate::lanes::{Isa, Vectorized, dispatch};
use fmm_kernels::equivalent::{Fill, Lattice, spectra::Grid};
use fmm_traits::{Lane, Real, Simd, SimdLane};

/// Place of entry `f` of a spectrum of this module in the layout of [`fmm_kernels::equivalent::spectra`].
pub fn frequency(grid: Grid, f: usize) -> usize {
    let (n, half, layers) = (grid.side, grid.half(), grid.layers);
    let (ky, kz, kx) = (f / layers / half, f / layers % half, f % layers);
    (kx * n + ky) * half + kz
}

/// The transforms of one lattice and precision for one instruction set.
pub struct Dft<T> {
    lattice: Lattice,
    grid: Grid,
    isa: Isa,
    width: usize,
    /// Entry (x·p + y)·p + z of each point of the lattice.
    entries: Vec<usize>,
    /// cos and sin of 2π·jk/n at `[(k·p + j)·2]`, k in 0..half, j in 0..p.
    angles: Vec<T>,
}

/// Buffers of one thread.
#[derive(Default)]
pub struct Buffers<T> {
    /// `[(x·p + y)·p + z][box]`. Entries off the lattice stay zero.
    field: Vec<T>,
    a: Vec<T>,
    b: Vec<T>,
    /// Result of [`Dft::forward`], input of [`Dft::inverse`].
    pub spectrum: Vec<T>,
}

struct Width<T>(std::marker::PhantomData<T>);
impl<T: Real> Vectorized for Width<T> {
    type Output = usize;
    #[inline(always)]
    fn run<S: Simd>(self) -> usize {
        T::Vector::<S>::WIDTH
    }
}

impl<T: Real> Dft<T> {
    /// The transforms for a `lattice`.
    pub fn new(lattice: Lattice, isa: Isa) -> Self {
        let p = lattice.order;
        let grid = Grid::new(lattice);
        let mut angles = Vec::new();
        for k in 0..grid.half() {
            for j in 0..p {
                let angle = std::f64::consts::TAU * (j * k % grid.side) as f64 / grid.side as f64;
                angles.extend([T::of(angle.cos()), T::of(angle.sin())]);
            }
        }
        let [x, y, z] = grid.axes();
        let entries = lattice.coordinates().into_iter().map(|at| (at[x] * p + at[y]) * p + at[z]).collect();
        Dft { lattice, grid, isa, width: dispatch(isa, Width::<T>(Default::default())), entries, angles }
    }

    /// The grid.
    pub fn grid(&self) -> Grid {
        self.grid
    }
    /// Points of the lattice.
    pub fn points(&self) -> usize {
        self.entries.len()
    }
    /// Frequencies in a block: as many as fill a vector with one family.
    pub fn group(&self) -> usize {
        self.lanes() / FAMILY
    }
    /// Blocks in a spectrum.
    pub fn groups(&self) -> usize {
        self.grid.frequencies().div_ceil(self.group())
    }
    /// Points along x.
    fn depth(&self) -> usize {
        if self.lattice.dim == 3 { self.lattice.order } else { 1 }
    }
    /// Boxes per transform: one family, or as many as fill a vector.
    pub fn lanes(&self) -> usize {
        self.width.max(FAMILY)
    }

    /// Buffers for one thread.
    pub fn buffers(&self) -> Buffers<T> {
        let (p, n, half, complex) = (self.lattice.order, self.grid.side, self.grid.half(), 2 * self.lanes());
        let depth = self.depth();
        let zeros = |len: usize| vec![T::default(); len];
        Buffers {
            field: zeros(depth * p * p * self.lanes()),
            a: zeros(depth * half * p * complex),
            b: zeros(n * half * depth * complex),
            spectrum: zeros(self.grid.frequencies() * complex),
        }
    }

    /// Computes the spectra of [`lanes`](Self::lanes) boxes in `buffers.spectrum`. `value(point, lanes)` fills in the
    /// values of the boxes at a point.
    pub fn forward(&self, buffers: &mut Buffers<T>, value: impl Fn(usize, &mut [T])) {
        let lanes = self.lanes();
        for (i, &at) in self.entries.iter().enumerate() {
            value(i, &mut buffers.field[at * lanes..][..lanes]);
        }
        dispatch(self.isa, Forward { dft: self, buffers });
    }

    /// Hands the spectrum of family `m` of the transform to `to(block number, block)`. A block is
    /// `[re, im][child][frequency]` for [`group`](Self::group) frequencies.
    pub fn for_each_block(&self, buffers: &Buffers<T>, m: usize, mut to: impl FnMut(usize, &[T])) {
        let (group, lanes) = (self.group(), self.lanes());
        let mut block = [T::default(); 4 * FAMILY];
        for (g, frequencies) in buffers.spectrum.chunks(group * 2 * lanes).enumerate() {
            if group == 1 {
                to(g, frequencies);
                continue;
            }
            for (f, x) in frequencies.chunks_exact(lanes).enumerate() {
                for (k, x) in x[m * FAMILY..][..FAMILY].iter().enumerate() {
                    block[(f % 2 * FAMILY + k) * group + f / 2] = *x;
                }
            }
            to(g, &block);
        }
    }

    /// Sets the spectrum of family `m` of the transform from the blocks of [`for_each_block`](Self::for_each_block).
    pub fn fill_blocks<'a>(&self, buffers: &mut Buffers<T>, m: usize, from: impl Fn(usize) -> &'a [T]) {
        let (group, lanes) = (self.group(), self.lanes());
        for (g, frequencies) in buffers.spectrum.chunks_mut(group * 2 * lanes).enumerate() {
            let block = from(g);
            if group == 1 {
                frequencies.copy_from_slice(block);
                continue;
            }
            for (f, x) in frequencies.chunks_exact_mut(lanes).enumerate() {
                for (k, x) in x[m * FAMILY..][..FAMILY].iter_mut().enumerate() {
                    *x = block[(f % 2 * FAMILY + k) * group + f / 2];
                }
            }
        }
    }

    /// Transforms `buffers.spectrum` back, and hands the values of the boxes at each point to
    /// `value(point, lanes)`.
    pub fn inverse(&self, buffers: &mut Buffers<T>, mut value: impl FnMut(usize, &[T])) {
        let lanes = self.lanes();
        dispatch(self.isa, Inverse { dft: self, buffers: &mut *buffers });
        for (i, &at) in self.entries.iter().enumerate() {
            value(i, &buffers.field[at * lanes..][..lanes]);
        }
        if self.lattice.fill == Fill::Volume && self.lattice.order % 2 == 1 {
            // The centre is not a point of the lattice.
            let centre = self.lattice.order.pow(self.lattice.dim as u32) / 2;
            buffers.field[centre * lanes..][..lanes].fill(T::default());
        }
    }
}

/// One vector of a buffer. Checking the index is free here: the passes are bound by arithmetic.
#[inline(always)]
fn get<V: SimdLane>(from: &[V::Scalar], at: usize) -> V {
    let from = &from[at..at + V::WIDTH];
    // SAFETY: the slice has WIDTH entries.
    unsafe { V::load(from.as_ptr()) }
}

#[inline(always)]
fn put<V: SimdLane>(v: V, to: &mut [V::Scalar], at: usize) {
    let to = &mut to[at..at + V::WIDTH];
    // SAFETY: the slice has WIDTH entries.
    unsafe { v.store(to.as_mut_ptr()) }
}

struct Forward<'a, T> {
    dft: &'a Dft<T>,
    buffers: &'a mut Buffers<T>,
}

impl<T: Real> Vectorized for Forward<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Dft { lattice, grid, angles, .. } = self.dft;
        let (p, n, half, lanes) = (lattice.order, grid.side, grid.half(), self.dft.lanes());
        let (depth, layers) = (self.dft.depth(), grid.layers);
        let Buffers { field, a, b, spectrum } = self.buffers;
        for v in (0..lanes).step_by(T::Vector::<S>::WIDTH) {
            // z: real lines (x, y) of p values → a[(x·half + kz)·p + y].
            for xy in 0..depth * p {
                for kz in 0..half {
                    let mut re = T::Vector::<S>::splat(0.0);
                    let mut im = re;
                    for j in 0..p {
                        let x: T::Vector<S> = get(field, (xy * p + j) * lanes + v);
                        re = x.mul_add(SimdLane::broadcast(angles[(kz * p + j) * 2]), re);
                        im = x.mul_add(SimdLane::broadcast(angles[(kz * p + j) * 2 + 1]), im);
                    }
                    let to = ((xy / p * half + kz) * p + xy % p) * 2 * lanes + v;
                    put(re, a, to);
                    put(-im, a, to + lanes);
                }
            }
            // y: lines (x, kz) → b[(ky·half + kz)·depth + x].
            for x in 0..depth {
                for kz in 0..half {
                    let place = |ky: usize| ((ky * half + kz) * depth + x) * 2 * lanes + v;
                    spread::<T, S>(angles, p, n, a, (x * half + kz) * p * 2 * lanes + v, lanes, b, place);
                }
            }
            // x: lines (ky, kz) → spectrum.
            for line in 0..n * half {
                let place = |kx: usize| (line * layers + kx) * 2 * lanes + v;
                spread::<T, S>(angles, depth, layers, b, line * depth * 2 * lanes + v, lanes, spectrum, place);
            }
        }
    }
}

/// Transforms a line forward: p consecutive complex values → n frequencies.
#[inline(always)]
fn spread<T: Real, S: Simd>(
    angles: &[T],
    p: usize,
    n: usize,
    from: &[T],
    start: usize,
    lanes: usize,
    to: &mut [T],
    place: impl Fn(usize) -> usize,
) {
    for k in 0..=n / 2 {
        let zero = T::Vector::<S>::splat(0.0);
        let (mut rc, mut rs, mut ic, mut is) = (zero, zero, zero, zero);
        for j in 0..p {
            let at = start + j * 2 * lanes;
            let (re, im): (T::Vector<S>, T::Vector<S>) = (get(from, at), get(from, at + lanes));
            let cos = SimdLane::broadcast(angles[(k * p + j) * 2]);
            let sin = SimdLane::broadcast(angles[(k * p + j) * 2 + 1]);
            rc = re.mul_add(cos, rc);
            rs = re.mul_add(sin, rs);
            ic = im.mul_add(cos, ic);
            is = im.mul_add(sin, is);
        }
        // (re + i·im)·(cos ∓ i·sin) for k and n − k.
        put(rc + is, to, place(k));
        put(ic - rs, to, place(k) + lanes);
        if k > 0 {
            put(rc - is, to, place(n - k));
            put(ic + rs, to, place(n - k) + lanes);
        }
    }
}

struct Inverse<'a, T> {
    dft: &'a Dft<T>,
    buffers: &'a mut Buffers<T>,
}

impl<T: Real> Vectorized for Inverse<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Dft { lattice, grid, angles, .. } = self.dft;
        let (p, n, half, lanes) = (lattice.order, grid.side, grid.half(), self.dft.lanes());
        let (depth, layers) = (self.dft.depth(), grid.layers);
        let Buffers { field, a, b, spectrum } = self.buffers;
        for v in (0..lanes).step_by(T::Vector::<S>::WIDTH) {
            for line in 0..n * half {
                let place = |kx: usize| (line * layers + kx) * 2 * lanes + v;
                collect::<T, S>(angles, depth, layers, spectrum, place, lanes, b, line * depth * 2 * lanes + v);
            }
            for x in 0..depth {
                for kz in 0..half {
                    let place = |ky: usize| ((ky * half + kz) * depth + x) * 2 * lanes + v;
                    collect::<T, S>(angles, p, n, b, place, lanes, a, (x * half + kz) * p * 2 * lanes + v);
                }
            }
            // z: half spectrum of a real line, in which kz > 0 counts twice. For a surface, only its points are
            // computed, and the points inside stay zero for the next forward transform.
            for xy in 0..depth * p {
                let edge = |i: usize| i == 0 || i + 1 == p;
                let all = lattice.fill == Fill::Volume || depth > 1 && edge(xy / p) || edge(xy % p);
                let step = if all { 1 } else { p - 1 };
                for j in (0..p).step_by(step) {
                    let from = |kz: usize| ((xy / p * half + kz) * p + xy % p) * 2 * lanes + v;
                    let mut sum = T::Vector::<S>::splat(0.0);
                    for kz in 1..half {
                        let (re, im): (T::Vector<S>, T::Vector<S>) = (get(a, from(kz)), get(a, from(kz) + lanes));
                        sum = re.mul_add(SimdLane::broadcast(angles[(kz * p + j) * 2]), sum);
                        sum = im.mul_add(SimdLane::broadcast(-angles[(kz * p + j) * 2 + 1]), sum);
                    }
                    put(sum + sum + get(a, from(0)), field, (xy * p + j) * lanes + v);
                }
            }
        }
    }
}

/// Transforms a line back: n frequencies → p consecutive complex values. Overwrites `from`.
#[inline(always)]
fn collect<T: Real, S: Simd>(
    angles: &[T],
    p: usize,
    n: usize,
    from: &mut [T],
    place: impl Fn(usize) -> usize,
    lanes: usize,
    to: &mut [T],
    start: usize,
) {
    // Sum and difference of frequencies k and n − k, in place.
    for k in 1..=n / 2 {
        let (x, y) = (place(k), place(n - k));
        for part in [0, lanes] {
            let (f, g): (T::Vector<S>, T::Vector<S>) = (get(from, x + part), get(from, y + part));
            put(f + g, from, x + part);
            put(f - g, from, y + part);
        }
    }
    for j in 0..p {
        let mut re: T::Vector<S> = get(from, place(0));
        let mut im: T::Vector<S> = get(from, place(0) + lanes);
        for k in 1..=n / 2 {
            let cos: T::Vector<S> = SimdLane::broadcast(angles[(k * p + j) * 2]);
            let sin: T::Vector<S> = SimdLane::broadcast(angles[(k * p + j) * 2 + 1]);
            let minus: T::Vector<S> = SimdLane::broadcast(-angles[(k * p + j) * 2 + 1]);
            re = cos.mul_add(get(from, place(k)), minus.mul_add(get(from, place(n - k) + lanes), re));
            im = cos.mul_add(get(from, place(k) + lanes), sin.mul_add(get(from, place(n - k)), im));
        }
        put(re, to, start + j * 2 * lanes);
        put(im, to, start + j * 2 * lanes + lanes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<T: Real>(tolerance: f64) {
        for isa in Isa::available() {
            let in_space =
                || [3, 4, 6, 7, 10].map(Lattice::surface).into_iter().chain([3, 4, 5, 8].map(Lattice::volume));
            for lattice in in_space().chain(in_space().map(Lattice::in_plane)) {
                let (p, dft) = (lattice.order, Dft::<T>::new(lattice, isa));
                let mut buffers = dft.buffers();
                let value = |i: usize, k: usize| ((i * 7 + k * 13) % 31) as f64 - 15.0;
                dft.forward(&mut buffers, |i, x| {
                    x.iter_mut().enumerate().for_each(|(k, x)| *x = T::of(value(i, k)));
                });
                // The spectrum agrees with the definition at one frequency.
                let (grid, lanes) = (dft.grid(), dft.lanes());
                let (ky, kz, kx) = (2, 1, grid.layers - 1);
                let mut expected = (0.0, 0.0);
                for (i, at) in lattice.coordinates().into_iter().enumerate() {
                    let [x, y, z] = grid.axes().map(|axis| at[axis]);
                    let angle = -std::f64::consts::TAU * (kx * x + ky * y + kz * z) as f64 / grid.side as f64;
                    expected.0 += value(i, 3) * angle.cos();
                    expected.1 += value(i, 3) * angle.sin();
                }
                let at = ((ky * grid.half() + kz) * grid.layers + kx) * 2 * lanes + 3;
                let scale = 15.0 * dft.points() as f64;
                assert!((buffers.spectrum[at].f64() - expected.0).abs() < tolerance * scale);
                assert!((buffers.spectrum[at + lanes].f64() - expected.1).abs() < tolerance * scale);
                let n3 = grid.points() as f64;
                let mut seen = 0;
                dft.inverse(&mut buffers, |i, x| {
                    seen += 1;
                    for (k, x) in x.iter().enumerate() {
                        assert!((x.f64() / n3 - value(i, k)).abs() < tolerance * 100.0, "{} p {p}", isa.name());
                    }
                });
                assert_eq!(seen, dft.points());
            }
        }
    }

    #[test]
    fn forward_is_the_definition_and_inverse_undoes_it() {
        round_trip::<f64>(1e-14);
        round_trip::<f32>(2e-6);
    }
}
