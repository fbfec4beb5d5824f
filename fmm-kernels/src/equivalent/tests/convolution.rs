//! M2L of one pair through Fourier space, with the spectra that batched implementations use. Tests compare it with the
//! kernel between the surfaces.

use super::super::spectra::{Grid, OFFSETS, for_each_spectrum, transform};
use fmm_traits::Member;
use rustfft::{Fft, FftPlanner, num_complex::Complex};
use std::sync::Arc;

/// The spectra of a kernel, and the transforms.
pub struct Convolution {
    grid: Grid,
    surface: Vec<usize>,
    values: usize,
    strengths: usize,
    /// `[offset][value][strength][frequency]`.
    spectra: Vec<Complex<f64>>,
    forward: Arc<dyn Fft<f64>>,
    inverse: Arc<dyn Fft<f64>>,
}

impl Convolution {
    /// All spectra of an equivalent `kernel` at order `p`.
    pub fn new(kernel: &Member, params: &[f64], p: usize) -> Self {
        let grid = Grid::new(p.into());
        let (f, c, e) = (grid.frequencies(), kernel.values, kernel.strengths);
        let mut spectra = vec![Complex::new(0.0, 0.0); OFFSETS * c * e * f];
        for_each_spectrum(kernel, params, p.into(), &mut |o, a, b, spectrum| {
            let at = ((o * c + a) * e + b) * f;
            spectra[at..at + f].copy_from_slice(spectrum);
        });
        let mut planner = FftPlanner::new();
        let (forward, inverse) = (planner.plan_fft_forward(grid.side), planner.plan_fft_inverse(grid.side));
        Convolution { grid, surface: grid.entries(p.into()), values: c, strengths: e, spectra, forward, inverse }
    }

    /// `local` += check values from the density `multipole` at the offset with index `offset`.
    pub fn apply(&self, offset: usize, multipole: &[f64], local: &mut [f64]) {
        let (grid, n, half) = (self.grid, self.grid.side, self.grid.half());
        let (f, points, zero) = (grid.frequencies(), self.surface.len(), Complex::new(0.0, 0.0));
        let transformed: Vec<Vec<Complex<f64>>> = (0..self.strengths)
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
