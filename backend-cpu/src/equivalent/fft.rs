//! Three-dimensional real transforms of eight boxes at once, one box a lane, with the passes over
//! lines that are zero (forward) or not wanted (inverse) left out: a surface of order p fills only
//! p of the 2p − 1 points of each axis.
//!
//! Spectra here run over `(ky·half + kz)·side + kx` (the order in which the last pass leaves them);
//! [`frequency`] gives the place in [`fmm_kernels::equivalent::spectra`].

use fmm_kernels::equivalent::{Scalar, spectra::Grid, surface};
use num_traits::{FromPrimitive, Num, One, Signed, Zero};
use realfft::{ComplexToReal, RealFftPlanner, RealToComplex};
use rustfft::{Fft, FftPlanner, num_complex::Complex};
use std::ops::{Add, Div, Mul, Neg, Rem, Sub};
use std::sync::Arc;

/// Boxes per transform.
pub const BOXES: usize = 8;

/// One number of each of eight boxes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(64))]
pub struct Octet<T>(pub [T; BOXES]);

impl<T: Scalar> Octet<T> {
    /// The same number for all boxes.
    pub fn splat(x: T) -> Self {
        Octet([x; BOXES])
    }
}

macro_rules! lanewise {
    ($($trait:ident $method:ident),*) => {$(
        impl<T: Scalar> $trait for Octet<T> {
            type Output = Self;
            #[inline(always)]
            fn $method(mut self, o: Self) -> Self {
                for i in 0..BOXES {
                    self.0[i] = $trait::$method(self.0[i], o.0[i]);
                }
                self
            }
        }
    )*};
}
lanewise!(Add add, Sub sub, Mul mul, Div div, Rem rem);
impl<T: Scalar> Neg for Octet<T> {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        Octet(self.0.map(|x| -x))
    }
}
impl<T: Scalar> Zero for Octet<T> {
    fn zero() -> Self {
        Self::splat(T::zero())
    }
    fn is_zero(&self) -> bool {
        self.0.iter().all(T::is_zero)
    }
}
impl<T: Scalar> One for Octet<T> {
    fn one() -> Self {
        Self::splat(T::one())
    }
}
impl<T: Scalar> Num for Octet<T> {
    type FromStrRadixErr = <T as Num>::FromStrRadixErr;
    fn from_str_radix(s: &str, radix: u32) -> Result<Self, Self::FromStrRadixErr> {
        T::from_str_radix(s, radix).map(Self::splat)
    }
}
impl<T: Scalar> Signed for Octet<T> {
    fn abs(&self) -> Self {
        Octet(self.0.map(|x| x.abs()))
    }
    fn abs_sub(&self, other: &Self) -> Self {
        Octet(std::array::from_fn(|i| self.0[i].abs_sub(&other.0[i])))
    }
    fn signum(&self) -> Self {
        Octet(self.0.map(|x| x.signum()))
    }
    fn is_positive(&self) -> bool {
        self.0.iter().all(Signed::is_positive)
    }
    fn is_negative(&self) -> bool {
        self.0.iter().all(Signed::is_negative)
    }
}
impl<T: Scalar> FromPrimitive for Octet<T> {
    fn from_i64(n: i64) -> Option<Self> {
        T::from_i64(n).map(Self::splat)
    }
    fn from_u64(n: u64) -> Option<Self> {
        T::from_u64(n).map(Self::splat)
    }
    fn from_f64(n: f64) -> Option<Self> {
        <T as FromPrimitive>::from_f64(n).map(Self::splat)
    }
}

/// Place of entry `f` of a spectrum of this module in the layout of
/// [`fmm_kernels::equivalent::spectra`].
pub fn frequency(grid: Grid, f: usize) -> usize {
    let (n, half) = (grid.side, grid.half());
    let (ky, kz, kx) = (f / n / half, f / n % half, f % n);
    (kx * n + ky) * half + kz
}

/// The transforms of one order.
pub struct Transforms<T: Scalar> {
    p: usize,
    grid: Grid,
    lattice: Vec<[usize; 3]>,
    real: Arc<dyn RealToComplex<Octet<T>>>,
    unreal: Arc<dyn ComplexToReal<Octet<T>>>,
    forward: Arc<dyn Fft<Octet<T>>>,
    inverse: Arc<dyn Fft<Octet<T>>>,
}

/// Buffers of [`Transforms`].
#[derive(Default)]
pub struct Buffers<T> {
    line: Vec<Octet<T>>,
    half: Vec<Complex<Octet<T>>>,
    a: Vec<Complex<Octet<T>>>,
    b: Vec<Complex<Octet<T>>>,
    scratch: Vec<Complex<Octet<T>>>,
}

impl<T: Scalar> Transforms<T> {
    /// Plans the transforms for surfaces of order `p`.
    pub fn new(p: usize) -> Self {
        let grid = Grid::new(p);
        let (mut real, mut complex) = (RealFftPlanner::new(), FftPlanner::new());
        Transforms {
            p,
            grid,
            lattice: surface::lattice(p),
            real: real.plan_fft_forward(grid.side),
            unreal: real.plan_fft_inverse(grid.side),
            forward: complex.plan_fft_forward(grid.side),
            inverse: complex.plan_fft_inverse(grid.side),
        }
    }

    /// The grid.
    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// Points on the surface.
    pub fn points(&self) -> usize {
        self.lattice.len()
    }

    /// Buffers for one thread.
    pub fn buffers(&self) -> Buffers<T> {
        let (n, half, zero) = (self.grid.side, self.grid.half(), Complex::zero());
        let scratch = [
            self.real.get_scratch_len(),
            self.unreal.get_scratch_len(),
            self.forward.get_inplace_scratch_len(),
            self.inverse.get_inplace_scratch_len(),
        ];
        Buffers {
            line: vec![Octet::zero(); n],
            half: vec![zero; half],
            a: vec![zero; n * n * half],
            b: vec![zero; n * n * half],
            scratch: vec![zero; scratch.into_iter().max().unwrap_or(0)],
        }
    }

    /// Spectrum of the surface values of eight boxes, `surface[point]`.
    pub fn forward<'b>(&self, surface: &[Octet<T>], buffers: &'b mut Buffers<T>) -> &'b [Complex<Octet<T>>] {
        let (n, half, p) = (self.grid.side, self.grid.half(), self.p);
        let Buffers { line, half: spectrum, a, b, scratch } = buffers;
        // z: lines (x, y) → a[(x·half + kz)·n + y].
        a[..p * half * n].fill(Complex::zero());
        let mut next = 0;
        for xy in 0..p * p {
            let (x, y) = (xy / p, xy % p);
            line.fill(Octet::zero());
            while next < self.lattice.len() && self.lattice[next][..2] == [x, y] {
                line[self.lattice[next][2]] = surface[next];
                next += 1;
            }
            // Lengths are those of the plan, the only error there is.
            let _ = self.real.process_with_scratch(line, spectrum, scratch);
            for (kz, &v) in spectrum.iter().enumerate() {
                a[(x * half + kz) * n + y] = v;
            }
        }
        // y: lines (x, kz) → b[(ky·half + kz)·n + x].
        self.forward.process_with_scratch(&mut a[..p * half * n], scratch);
        for ky in 0..n {
            for kz in 0..half {
                let to = &mut b[(ky * half + kz) * n..][..n];
                for x in 0..p {
                    to[x] = a[(x * half + kz) * n + ky];
                }
                to[p..].fill(Complex::zero());
            }
        }
        // x: lines (ky, kz).
        self.forward.process_with_scratch(b, scratch);
        b
    }

    /// Where the caller puts a spectrum before [`inverse`](Self::inverse).
    pub fn spectrum<'b>(&self, buffers: &'b mut Buffers<T>) -> &'b mut [Complex<Octet<T>>] {
        &mut buffers.b
    }

    /// Surface values of eight boxes from the spectrum in `buffers`, handed to `out(point, values)`.
    pub fn inverse(&self, buffers: &mut Buffers<T>, mut out: impl FnMut(usize, &Octet<T>)) {
        let (n, half, p) = (self.grid.side, self.grid.half(), self.p);
        let Buffers { line, half: spectrum, a, b, scratch } = buffers;
        self.inverse.process_with_scratch(b, scratch);
        for x in 0..p {
            for kz in 0..half {
                let to = &mut a[(x * half + kz) * n..][..n];
                for ky in 0..n {
                    to[ky] = b[(ky * half + kz) * n + x];
                }
            }
        }
        self.inverse.process_with_scratch(&mut a[..p * half * n], scratch);
        let mut next = 0;
        for xy in 0..p * p {
            let (x, y) = (xy / p, xy % p);
            for (kz, v) in spectrum.iter_mut().enumerate() {
                *v = a[(x * half + kz) * n + y];
            }
            // The mean of a real line is real; rounding left a trace.
            spectrum[0].im = Octet::zero();
            let _ = self.unreal.process_with_scratch(spectrum, line, scratch);
            while next < self.lattice.len() && self.lattice[next][..2] == [x, y] {
                out(next, &line[self.lattice[next][2]]);
                next += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inverse_undoes_forward() {
        for p in [3, 4, 6, 7, 10] {
            let transforms = Transforms::<f64>::new(p);
            let n = surface::len(p);
            let mut buffers = transforms.buffers();
            let values: Vec<_> =
                (0..n).map(|i| Octet(std::array::from_fn(|k| ((i * 7 + k * 13) % 31) as f64 - 15.0))).collect();
            transforms.forward(&values, &mut buffers);
            let scale = 1.0 / transforms.grid().points() as f64;
            let mut seen = 0;
            transforms.inverse(&mut buffers, |i, v| {
                seen += 1;
                for k in 0..BOXES {
                    assert!((v.0[k] * scale - values[i].0[k]).abs() < 1e-12);
                }
            });
            assert_eq!(seen, n);
        }
    }
}
