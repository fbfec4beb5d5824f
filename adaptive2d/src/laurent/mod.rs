//! Laurent and Taylor series in the complex plane (Goude & Engblom 2012, eqs. 2.2–2.3), one pair at a time.
//!
//! M(z) = a_0 log(z − z_0) + Σ a_j/(z − z_0)^j outside a box, L(z) = Σ b_j (z − z_0)^j inside it, j ≤ p. Rows
//! hold a_0, a_1/ρ, … a_p/ρ^p and b_0, b_1·ρ, … b_p·ρ^p, real and imaginary parts in turn, where ρ is the
//! [scale](crate::Pyramid::scale) of the box (half the side of its cube).

mod kernel;
pub mod shift;

pub use kernel::{Analytic, Jet, MAX_VALUES, PlaneKernel, slot_of};

use crate::complex::Complex;
use fmm_traits::{Cloud, Cube, Error, Expansion};

/// Complex f64.
type C = Complex<f64>;

/// Laurent series of order p.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Laurent {
    /// The kernel.
    pub kernel: PlaneKernel,
    /// Order p.
    pub order: usize,
    /// Order of the derivatives that values carry: 0, 1 (gradient) or 2 (gradient and second derivatives).
    pub derivatives: usize,
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
    /// Series of a kernel. Values carry derivatives up to the order `derivatives`; an order above 2 counts as 2.
    ///
    /// # Errors
    /// [`Error::Order`] unless 1 ≤ p ≤ 60.
    pub fn new(kernel: impl Into<PlaneKernel>, order: usize, derivatives: usize) -> Result<Self, Error> {
        if !(1..=MAX_ORDER).contains(&order) {
            return Err(Error::Order { order, min: 1, max: MAX_ORDER });
        }
        Ok(Laurent { kernel: kernel.into(), order, derivatives: derivatives.min(2) })
    }

    /// Charge and pole of source `i`.
    fn strength(&self, strengths: &[f64], i: usize) -> (f64, C) {
        let (charge, [re, im]) = self.kernel.strength(strengths, i);
        (charge, C::new(re, im))
    }

    /// Adds the values of a target from f, f′ and f″.
    fn add(&self, [f, first, second]: [C; 3], values: &mut [f64]) {
        self.add_jet([f.re, f.im, first.re, first.im, second.re, second.im], values);
    }

    fn add_jet(&self, jet: Jet, values: &mut [f64]) {
        values.iter_mut().zip(self.kernel.numbers(jet)).for_each(|(v, x)| *v += x);
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
        self.kernel.values(self.derivatives)
    }
    /// A charge Γ: a_0 = Γ, a_j = −Γ δ^j/j. A pole m: a_j = −m δ^(j−1). Here δ = z_j − z_0.
    fn p2m(&self, at: Cube, sources: Cloud<f64>, multipole: &mut [f64]) {
        for (i, &x) in sources.xyz.iter().enumerate() {
            let (charge, pole) = self.strength(sources.strengths, i);
            let ratio = (point(x) - center(at)).scaled(scale(at).recip());
            if self.kernel.charges() {
                let charge = C::new(charge, 0.0);
                self.add_powers(multipole, charge, ratio, |n| charge.scaled(-shift::INVERSES[n]));
            }
            if self.kernel.poles() {
                // The power of a_1 is 0: powers are one behind the terms.
                let first = pole.scaled(-scale(at).recip());
                self.add_powers(&mut multipole[2..], first, ratio, |_| first);
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
    /// A charge Γ: b_0 = Γ log(−ζ), b_n = −Γ/(n ζ^n). A pole m: b_n = m/ζ^(n+1). Here ζ = z_j − z_0.
    fn p2l(&self, at: Cube, _: Cube, sources: Cloud<f64>, local: &mut [f64]) {
        for (i, &x) in sources.xyz.iter().enumerate() {
            let (charge, pole) = self.strength(sources.strengths, i);
            let zeta = point(x) - center(at);
            let ratio = zeta.scaled(scale(at).recip()).inverse();
            if self.kernel.charges() {
                let charge = C::new(charge, 0.0);
                let first = charge.scaled(zeta.re.hypot(zeta.im).ln());
                self.add_powers(local, first, ratio, |n| charge.scaled(-shift::INVERSES[n]));
            }
            if self.kernel.poles() {
                let first = pole * ratio.scaled(scale(at).recip());
                self.add_powers(local, first, ratio, |_| first);
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
    /// Horner's rule for L, L′ and L″/2.
    fn l2p(&self, at: Cube, local: &[f64], targets: &[[f64; 3]], values: &mut [f64]) {
        let b = unpack(local);
        let inverse = scale(at).recip();
        for (&x, values) in targets.iter().zip(values.chunks_exact_mut(self.values())) {
            let z = (point(x) - center(at)).scaled(inverse);
            let [mut f, mut first, mut half] = [C::zero(); 3];
            for &b in b[..=self.order].iter().rev() {
                half = half.mul_add(z, first);
                first = first.mul_add(z, f);
                f = f.mul_add(z, b);
            }
            self.add([f, first.scaled(inverse), half.scaled(2.0 * inverse).scaled(inverse)], values);
        }
    }
    /// Horner's rule in w = ρ/(z − z_0), of which w′ = −w²/ρ: M = a_0 log(z − z_0) + Σ a_j w^j,
    /// M′ = (a_0 − Σ j a_j w^j) w/ρ and M″ = (−a_0 + Σ j (j + 1) a_j w^j) w²/ρ².
    fn m2p(&self, source: Cube, multipole: &[f64], targets: &[[f64; 3]], values: &mut [f64]) {
        let a = unpack(multipole);
        let inverse = scale(source).recip();
        for (&x, values) in targets.iter().zip(values.chunks_exact_mut(self.values())) {
            let d = point(x) - center(source);
            let w = d.scaled(inverse).inverse();
            let [mut f, mut first, mut second] = [C::zero(); 3];
            for (j, &a) in a[1..=self.order].iter().enumerate().rev() {
                let j = j as f64 + 1.0;
                f = f.mul_add(w, a);
                first = first.mul_add(w, a.scaled(-j));
                second = second.mul_add(w, a.scaled(j * (j + 1.0)));
            }
            let (a0, step) = (a[0], w.scaled(inverse));
            f = (f * w) + a0.scaled(d.re.hypot(d.im).ln());
            first = first.mul_add(w, a0) * step;
            second = second.mul_add(w, C::zero() - a0) * step * step;
            self.add([f, first, second], values);
        }
    }
    fn p2p(&self, sources: Cloud<f64>, targets: &[[f64; 3]], same: bool, values: &mut [f64]) {
        for (t, (&x, values)) in targets.iter().zip(values.chunks_exact_mut(self.values())).enumerate() {
            for (s, &y) in sources.xyz.iter().enumerate() {
                if same && s == t {
                    continue;
                }
                let (d, width) = (point(x) - point(y), self.strengths());
                self.add_jet(self.kernel.pair([d.re, d.im], &sources.strengths[width * s..][..width]), values);
            }
        }
    }
    /// The circles of the boxes do not overlap.
    fn admissible(&self, at: Cube, source: Cube) -> bool {
        let d = center(source) - center(at);
        d.re.hypot(d.im) >= (scale(at) + scale(source)) * (1.0 - 1e-12)
    }
}
