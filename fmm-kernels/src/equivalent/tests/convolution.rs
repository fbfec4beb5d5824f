//! M2L of one pair through Fourier space, with the spectra that batched implementations use. Tests compare it with the
//! kernel between the surfaces.

use super::super::Scalar;
use super::super::spectra::{Grid, OFFSETS, for_each_spectrum, transform};
use fmm_traits::{Kernel, Member};
use rustfft::{Fft, FftPlanner, num_complex::Complex};
use std::sync::Arc;

/// The spectra of a kernel, and the transforms.
pub struct Convolution<T> {
    grid: Grid,
    surface: Vec<usize>,
    values: usize,
    strengths: usize,
    /// `[offset][value][strength][frequency]`.
    spectra: Vec<Complex<T>>,
    forward: Arc<dyn Fft<T>>,
    inverse: Arc<dyn Fft<T>>,
}

impl<T: Scalar> Convolution<T> {
    /// All spectra of the equivalent kernel `K` at order `p`.
    pub fn new<K: Kernel>(params: &[f64], p: usize) -> Self {
        let grid = Grid::new(p.into());
        let (f, c, e) = (grid.frequencies(), K::VALUES, K::STRENGTHS);
        let mut spectra = vec![Complex::new(T::of(0.0), T::of(0.0)); OFFSETS * c * e * f];
        for_each_spectrum(&Member::of::<K>(), params, p.into(), &mut |o, a, b, spectrum| {
            let at = ((o * c + a) * e + b) * f;
            for (to, from) in spectra[at..at + f].iter_mut().zip(spectrum) {
                *to = Complex::new(T::of(from.re), T::of(from.im));
            }
        });
        let mut planner = FftPlanner::new();
        let (forward, inverse) = (planner.plan_fft_forward(grid.side), planner.plan_fft_inverse(grid.side));
        Convolution { grid, surface: grid.entries(p.into()), values: c, strengths: e, spectra, forward, inverse }
    }

    /// `local` += check values from the density `multipole` at the offset with index `offset`.
    pub fn apply(&self, offset: usize, multipole: &[T], local: &mut [T]) {
        let (grid, n, half) = (self.grid, self.grid.side, self.grid.half());
        let (f, points, zero) = (grid.frequencies(), self.surface.len(), Complex::new(T::of(0.0), T::of(0.0)));
        let transformed: Vec<Vec<Complex<T>>> = (0..self.strengths)
            .map(|b| {
                let mut cube = vec![zero; grid.points()];
                for (&g, &q) in self.surface.iter().zip(&multipole[b * points..]) {
                    cube[g].re = q;
                }
                transform(&*self.forward, n, cube)
            })
            .collect();
        for a in 0..self.values {
            let mut cube = vec![zero; grid.points()];
            for (b, density) in transformed.iter().enumerate() {
                let at = ((offset * self.values + a) * self.strengths + b) * f;
                for (k, &g) in self.spectra[at..at + f].iter().enumerate() {
                    let (kx, ky, kz) = (k / half / n, k / half % n, k % half);
                    let here = grid.entry([kx, ky, kz]);
                    let product = g * density[here];
                    cube[here] += product;
                    if kz > 0 {
                        let mirror = grid.entry([(n - kx) % n, (n - ky) % n, n - kz]);
                        cube[mirror] += product.conj();
                    }
                }
            }
            let field = transform(&*self.inverse, n, cube);
            for (t, &g) in self.surface.iter().enumerate() {
                local[a * points + t] += field[g].re;
            }
        }
    }
}
