//! Laurent and Taylor series in the complex plane (Goude & Engblom 2012, eqs. 2.2–2.3), one pair at a time.
//!
//! M(z) = a_0 log(z − z_0) + Σ a_j/(z − z_0)^j outside a box, L(z) = Σ b_j (z − z_0)^j inside it, j ≤ p. Rows
//! hold a_0, a_1/ρ, … a_p/ρ^p and b_0, b_1·ρ, … b_p·ρ^p, real and imaginary parts in turn, where ρ is the
//! [scale](crate::Pyramid::scale) of the box (half the side of its cube).

pub mod shift;

use crate::complex::Complex;
use fmm_traits::{Cloud, Cube, Error, Expansion};
use std::f64::consts::TAU;

/// Complex f64.
type C = Complex<f64>;

/// The Green's functions that have an expansion in Laurent series.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PlaneKernel {
    /// Σ Γ_j/(z_j − z), complex strengths and values (eq. 5.1). Values: Re, Im of the potential, then Re, Im of
    /// its complex derivative φ′; ∂φ/∂x = φ′, ∂φ/∂y = iφ′.
    Harmonic,
    /// −1/(2π) Σ Γ_j ln|z − z_j|, real strengths. Values: the potential, then ∂/∂x and ∂/∂y.
    Laplace,
}

impl PlaneKernel {
    /// Name of the kernel.
    pub fn name(self) -> &'static str {
        match self {
            PlaneKernel::Harmonic => "harmonic2d",
            PlaneKernel::Laplace => "laplace2d",
        }
    }
    /// Real strengths per source.
    pub fn strengths(self) -> usize {
        match self {
            PlaneKernel::Harmonic => 2,
            PlaneKernel::Laplace => 1,
        }
    }
    /// Real values per target.
    pub fn values(self, gradient: bool) -> usize {
        self.strengths() + if gradient { 2 } else { 0 }
    }
    /// Strength of source `i` as a complex number.
    fn strength(self, strengths: &[f64], i: usize) -> C {
        match self {
            PlaneKernel::Harmonic => C::new(strengths[2 * i], strengths[2 * i + 1]),
            PlaneKernel::Laplace => C::new(strengths[i], 0.0),
        }
    }
    /// Adds the complex potential f and its derivative to the values of a target. For logarithms,
    /// f = Σ Γ log(z − z_j), of which only the real part has a meaning, and ∂f/∂x − i ∂f/∂y = f′.
    pub fn add(self, f: C, derivative: C, values: &mut [f64]) {
        let numbers = match self {
            PlaneKernel::Harmonic => [f.re, f.im, derivative.re, derivative.im],
            PlaneKernel::Laplace => [-f.re / TAU, -derivative.re / TAU, derivative.im / TAU, 0.0],
        };
        values.iter_mut().zip(numbers).for_each(|(v, x)| *v += x);
    }
}

/// Laurent series of order p.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Laurent {
    /// The kernel.
    pub kernel: PlaneKernel,
    /// Order p.
    pub order: usize,
    /// Whether values carry the gradient.
    pub gradient: bool,
}

/// Largest order: binomials and powers are safe up to here.
pub const MAX_ORDER: usize = 60;

fn point(x: [f64; 3]) -> C {
    C::new(x[0], x[1])
}

fn center(cube: Cube) -> C {
    point(cube.center)
}

/// ρ of a box.
fn scale(cube: Cube) -> f64 {
    0.5 * cube.side
}

/// Coefficients of a row.
fn unpack(row: &[f64]) -> [C; MAX_ORDER + 1] {
    let mut a = [C::zero(); MAX_ORDER + 1];
    a.iter_mut().zip(row.chunks_exact(2)).for_each(|(a, x)| *a = C::new(x[0], x[1]));
    a
}

fn add_to_row(a: &[C], row: &mut [f64]) {
    for (x, a) in row.chunks_exact_mut(2).zip(a) {
        x[0] += a.re;
        x[1] += a.im;
    }
}

impl Laurent {
    /// # Errors
    /// [`Error::Order`] unless 1 ≤ p ≤ 60.
    pub fn new(kernel: PlaneKernel, order: usize, gradient: bool) -> Result<Self, Error> {
        if !(1..=MAX_ORDER).contains(&order) {
            return Err(Error::Order { order, min: 1, max: MAX_ORDER });
        }
        Ok(Laurent { kernel, order, gradient })
    }

    /// Adds to `row` at each power n = 0 … p: `at_zero` for n = 0, else `factor(n)`·`ratio`^n.
    fn add_powers(&self, row: &mut [f64], at_zero: C, ratio: C, factor: impl Fn(usize) -> C) {
        let mut power = C::one();
        for (n, x) in row.chunks_exact_mut(2).enumerate() {
            let c = if n == 0 { at_zero } else { factor(n) * power };
            x[0] += c.re;
            x[1] += c.im;
            power = power * ratio;
        }
    }
}

impl Expansion<f64> for Laurent {
    fn multipole_len(&self) -> usize {
        2 * (self.order + 1)
    }
    fn local_len(&self) -> usize {
        2 * (self.order + 1)
    }
    fn strengths(&self) -> usize {
        self.kernel.strengths()
    }
    fn values(&self) -> usize {
        self.kernel.values(self.gradient)
    }
    /// Harmonic: a_j = −Γ δ^(j−1); logarithms: a_0 = Γ, a_j = −Γ δ^j/j; δ = z_j − z_0.
    fn p2m(&self, at: Cube, sources: Cloud<f64>, multipole: &mut [f64]) {
        for (i, &x) in sources.xyz.iter().enumerate() {
            let strength = self.kernel.strength(sources.strengths, i);
            let ratio = (point(x) - center(at)).scaled(scale(at).recip());
            match self.kernel {
                PlaneKernel::Harmonic => {
                    // The power of a_1 is 0: powers are one behind the terms.
                    let first = strength.scaled(-scale(at).recip());
                    self.add_powers(&mut multipole[2..], first, ratio, |_| first);
                }
                PlaneKernel::Laplace => {
                    let factor = |n: usize| strength.scaled(-shift::INVERSES[n]);
                    self.add_powers(multipole, strength, ratio, factor);
                }
            }
        }
    }
    fn m2m(&self, at: Cube, child: Cube, from: &[f64], multipole: &mut [f64]) {
        let mut a = unpack(from);
        let a = &mut a[..=self.order];
        let r = center(child) - center(at);
        let v = r.scaled(scale(at).recip());
        let ratio = r.scaled(scale(child).recip());
        if ratio.square().sqrt() * shift::largest_ratio(self.order) > 1.0 {
            shift::m2m(a, ratio.inverse(), v);
        } else {
            shift::m2m_plain(a, scale(child) / scale(at), v);
        }
        add_to_row(a, multipole);
    }
    fn m2l(&self, at: Cube, source: Cube, from: &[f64], local: &mut [f64]) {
        let mut a = unpack(from);
        let a = &mut a[..=self.order];
        let r = center(source) - center(at);
        let u = r.scaled(scale(source).recip()).inverse();
        let v = r.scaled(scale(at).recip()).inverse();
        shift::m2l(a, u, v, r.re.hypot(r.im).ln());
        add_to_row(a, local);
    }
    /// ζ = z_j − z_0. Harmonic: b_n = Γ/ζ^(n+1); logarithms: b_0 = Γ log(−ζ), b_n = −Γ/(n ζ^n).
    fn p2l(&self, at: Cube, _: Cube, sources: Cloud<f64>, local: &mut [f64]) {
        for (i, &x) in sources.xyz.iter().enumerate() {
            let strength = self.kernel.strength(sources.strengths, i);
            let zeta = point(x) - center(at);
            let ratio = zeta.scaled(scale(at).recip()).inverse();
            match self.kernel {
                PlaneKernel::Harmonic => {
                    let first = strength * ratio.scaled(scale(at).recip());
                    self.add_powers(local, first, ratio, |_| first);
                }
                PlaneKernel::Laplace => {
                    let first = strength.scaled(zeta.re.hypot(zeta.im).ln());
                    self.add_powers(local, first, ratio, |n| strength.scaled(-shift::INVERSES[n]));
                }
            }
        }
    }
    fn l2l(&self, at: Cube, parent: Cube, from: &[f64], local: &mut [f64]) {
        let mut b = unpack(from);
        let b = &mut b[..=self.order];
        let r = center(parent) - center(at);
        let v = r.scaled(scale(parent).recip());
        let ratio = r.scaled(scale(at).recip());
        if ratio.square().sqrt() * shift::largest_ratio(self.order) > 1.0 {
            shift::l2l(b, ratio.inverse(), v);
        } else {
            shift::l2l_plain(b, scale(at) / scale(parent), v);
        }
        add_to_row(b, local);
    }
    fn l2p(&self, at: Cube, local: &[f64], targets: &[[f64; 3]], values: &mut [f64]) {
        let b = unpack(local);
        let inverse = scale(at).recip();
        for (&x, values) in targets.iter().zip(values.chunks_exact_mut(self.values())) {
            let z = (point(x) - center(at)).scaled(inverse);
            let (mut f, mut derivative) = (C::zero(), C::zero());
            for &b in b[..=self.order].iter().rev() {
                derivative = derivative.mul_add(z, f);
                f = f.mul_add(z, b);
            }
            self.kernel.add(f, derivative.scaled(inverse), values);
        }
    }
    fn m2p(&self, source: Cube, multipole: &[f64], targets: &[[f64; 3]], values: &mut [f64]) {
        let a = unpack(multipole);
        for (&x, values) in targets.iter().zip(values.chunks_exact_mut(self.values())) {
            let d = point(x) - center(source);
            let w = d.scaled(scale(source).recip()).inverse();
            // Horner in w = ρ/(z − z_0): Σ a_j w^j and −Σ j a_j w^j, the derivative times z − z_0.
            let (mut f, mut derivative) = (C::zero(), C::zero());
            for (j, &a) in a[1..=self.order].iter().enumerate().rev() {
                f = f.mul_add(w, a);
                derivative = derivative.mul_add(w, a.scaled(-(j as f64 + 1.0)));
            }
            let a0 = a[0];
            f = (f * w) + a0.scaled(d.re.hypot(d.im).ln());
            derivative = (derivative.mul_add(w, a0) * w).scaled(scale(source).recip());
            self.kernel.add(f, derivative, values);
        }
    }
    fn p2p(&self, sources: Cloud<f64>, targets: &[[f64; 3]], same: bool, values: &mut [f64]) {
        for (t, (&x, values)) in targets.iter().zip(values.chunks_exact_mut(self.values())).enumerate() {
            for (s, &y) in sources.xyz.iter().enumerate() {
                let d = point(y) - point(x);
                if (same && s == t) || (d.re == 0.0 && d.im == 0.0) {
                    continue;
                }
                let strength = self.kernel.strength(sources.strengths, s);
                let g = d.inverse();
                match self.kernel {
                    PlaneKernel::Harmonic => self.kernel.add(strength * g, strength * g * g, values),
                    PlaneKernel::Laplace => {
                        let f = strength.scaled(d.re.hypot(d.im).ln());
                        self.kernel.add(f, C::zero() - strength * g, values);
                    }
                }
            }
        }
    }
    /// The circles of the boxes do not overlap.
    fn admissible(&self, at: Cube, source: Cube) -> bool {
        let d = center(source) - center(at);
        d.re.hypot(d.im) >= (scale(at) + scale(source)) * (1.0 - 1e-12)
    }
}
