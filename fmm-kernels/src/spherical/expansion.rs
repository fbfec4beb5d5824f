//! The operators of the expansion, one box or one pair of boxes at a time. Every batched implementation is compared
//! with them.

use super::basis::Basis;
use super::coaxial::Step;
use super::direct::Direct;
use super::gradient::Gradient;
use super::layout::{Layout, derivatives_of, layout};
use super::rcr::Rcr;
use super::shift::Shift;
use super::truncation::{RADIUS, ROUNDING, Truncation, sphere};
use super::{MAX_ORDER, MIN_ORDER};
use fmm_traits::{Cloud, Cube, Error, Expansion, Kernels, Real};

/// How M2M, M2L and L2L are computed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Translation {
    /// Rotate – coaxial – rotate back, O(p³).
    #[default]
    Rcr,
    /// As `Rcr`, but an M2L translation may end at a domain of two or four children (`fmm_tree::domains`). With the
    /// lists of the 119 stencil this leaves 61 translations per box. The operators of one pair, in this file, use no
    /// domains.
    Domains,
    /// Term by term, O(p⁴).
    Direct,
}

impl Translation {
    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Translation::Rcr => "rcr",
            Translation::Domains => "domains",
            Translation::Direct => "direct",
        }
    }
}

/// Options of the expansion.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct SphericalOptions {
    /// How expansions are translated.
    pub translation: Translation,
    /// Whether M2L uses fewer degrees for distant pairs, and M2P of a treecode.
    pub truncation: Truncation,
    /// The opening angle θ of a treecode; `None` for lists with M2L.
    pub theta: Option<f64>,
}

/// Spherical harmonics for the kernels of a plan whose far field is that of Laplace charges and dipoles.
///
/// # Where it is valid
///
/// * M2P: all of the target box lies outside the sphere around the source box, of radius √3/2 sides about its
///   centre.
/// * M2L: the spheres around the two boxes are apart, D > √3/2·(h₁ + h₂). For equal sides the centres must be more
///   than √3 sides apart, so one box between them is enough in any direction. A source of half the side of the target
///   must have its centre more than 3√3/4 ≈ 1.3 target sides away (the nearest edge of the 119 stencil: 1.64).
///   Touching boxes are never far enough apart, nor is a leaf that is one small box away from a box of twice its
///   side.
/// * P2L: as M2P with the roles exchanged.
///
/// Truncation errors fall per degree by a factor of at most R₁/(D − R₂) or R₂/(D − R₁)
/// ([`truncation`](super::truncation)), and by R/d for points at distance d.
///
/// Values are those of the kernel, without the family's `scale`.
#[derive(Debug)]
pub struct SphericalExpansion<T> {
    order: usize,
    truncation: Truncation,
    kernels: Kernels,
    layout: Layout,
    basis: Basis<T>,
    gradient: Gradient<T>,
    translations: Translations<T>,
}

#[derive(Debug)]
enum Translations<T> {
    Rcr(Rcr<T>),
    Direct(Direct<T>),
}

impl<T: Real> SphericalExpansion<T> {
    /// The expansion of order `p`, p² coefficients: degrees 0 … p − 1.
    ///
    /// # Errors
    /// [`Error::Order`]; [`Error::Unsupported`] for kernels whose far field is not that of charges 1/r and dipoles.
    pub fn new(kernels: &Kernels, p: usize, options: SphericalOptions) -> Result<Self, Error> {
        if !(MIN_ORDER..=MAX_ORDER).contains(&p) {
            return Err(Error::Order { order: p, min: MIN_ORDER, max: MAX_ORDER });
        }
        let derivatives = derivatives_of(kernels.far.values);
        Ok(SphericalExpansion {
            order: p,
            truncation: options.truncation,
            layout: layout(kernels)?,
            kernels: kernels.clone(),
            basis: Basis::new(p + derivatives.max(1)),
            gradient: Gradient::new(p + derivatives.max(1)),
            translations: match options.translation {
                Translation::Rcr | Translation::Domains => Translations::Rcr(Rcr::new(p)),
                Translation::Direct => Translations::Direct(Direct::new(p)),
            },
        })
    }

    /// Highest derivative among the values.
    fn derivatives(&self) -> usize {
        derivatives_of(self.kernels.far.values)
    }

    /// The order.
    pub fn order(&self) -> usize {
        self.order
    }

    fn translate(&self, step: Step, shift: &Shift, from: &[T], to: &mut [T]) {
        match &self.translations {
            Translations::Direct(direct) => match step {
                Step::Up => direct.m2m(shift, from, to),
                Step::Across => direct.m2l(shift, from, to),
                Step::Down => direct.l2l(shift, from, to),
            },
            Translations::Rcr(rcr) => {
                let mut work = vec![T::of(0.0); 2 * self.order * self.order];
                rcr.add(&rcr.course(step, shift), from, to, &mut work);
            }
        }
    }

    /// Σ strength · row(source), once for the charges and once for each component of the dipoles. Strengths are hatted
    /// for the box `at`.
    fn moments(&self, sources: Cloud<T>, order: usize, at: Cube, row: impl Fn([f64; 3], &mut [T])) -> Moments<T> {
        let zeros = |some: bool| vec![T::of(0.0); if some { order * order } else { 0 }];
        let mut moments = Moments {
            charge: zeros(self.layout.charge.is_some()),
            dipole: std::array::from_fn(|_| zeros(self.layout.dipole.is_some())),
        };
        let hat = T::of(at.side.recip());
        let mut r = vec![T::of(0.0); order * order];
        for (&y, q) in sources.xyz.iter().zip(sources.strengths.chunks_exact(self.kernels.near.strengths)) {
            row(to_unit(at, y), &mut r);
            if let Some(k) = self.layout.charge {
                add(q[k], &r, &mut moments.charge);
            }
            if let Some(k) = self.layout.dipole {
                moments.dipole.iter_mut().zip(&q[k..]).for_each(|(to, &v)| add(v * hat, &r, to));
            }
        }
        moments
    }

    /// Adds the values at each target: Σ coefficients·row. `first` are the coefficients of the potential. `derive`
    /// turns coefficients of a field into coefficients of its derivative along an axis.
    fn evaluate(
        &self,
        at: Cube,
        first: &[T],
        derive: &dyn Fn(usize, &[T]) -> Vec<T>,
        row: &dyn Fn([f64; 3]) -> Vec<T>,
        targets: &[[f64; 3]],
        values: &mut [T],
    ) {
        let mut coefficients = vec![first.to_vec()];
        if self.derivatives() > 0 {
            let gradients: Vec<Vec<T>> = (0..3).map(|a| derive(a, first)).collect();
            let second = |a: usize| (a..3).map(|b| derive(b, &gradients[a])).collect::<Vec<_>>();
            let hessians = if self.derivatives() > 1 { (0..3).flat_map(second).collect() } else { Vec::new() };
            coefficients.extend(gradients.into_iter().chain(hessians));
        }
        let degrees = &self.kernels.far.value_degrees;
        let factors: Vec<T> = degrees.iter().map(|&degree| T::of(at.side.powi(degree))).collect();
        for (&x, values) in targets.iter().zip(values.chunks_exact_mut(degrees.len())) {
            let r = row(to_unit(at, x));
            for ((value, c), &factor) in values.iter_mut().zip(&coefficients).zip(&factors) {
                *value += factor * c.iter().zip(&r).map(|(&c, &r)| c * r).sum::<T>();
            }
        }
    }
}

/// Sums over sources: one row for the charges, three rows to which the gradient matrices are still to be applied.
struct Moments<T> {
    charge: Vec<T>,
    dipole: [Vec<T>; 3],
}

/// `to` += factor·`from`.
fn add<T: Real>(factor: T, from: &[T], to: &mut [T]) {
    to.iter_mut().zip(from).for_each(|(to, &x)| *to += factor * x);
}

/// `x` in units of `at`, from its centre.
fn to_unit(at: Cube, x: [f64; 3]) -> [f64; 3] {
    std::array::from_fn(|a| (x[a] - at.center[a]) / at.side)
}

impl<T: Real> Expansion<T> for SphericalExpansion<T> {
    fn multipole_len(&self) -> usize {
        self.order * self.order
    }
    fn local_len(&self) -> usize {
        self.order * self.order
    }
    fn strengths(&self) -> usize {
        self.kernels.near.strengths
    }
    fn values(&self) -> usize {
        self.kernels.near.values
    }

    fn p2m(&self, at: Cube, sources: Cloud<T>, multipole: &mut [T]) {
        let p = self.order;
        let moments = self.moments(sources, p, at, |y, r| self.basis.regular(p, y.map(T::of), r));
        add(T::of(1.0), &moments.charge, multipole);
        if self.layout.dipole.is_some() {
            (0..3).for_each(|a| self.gradient.raise(a, p, T::of(1.0), &moments.dipole[a], multipole));
        }
    }

    fn m2m(&self, at: Cube, child: Cube, from: &[T], multipole: &mut [T]) {
        self.translate(Step::Up, &Shift::up(at, child, self.order), from, multipole);
    }

    fn m2l(&self, at: Cube, source: Cube, from: &[T], local: &mut [T]) {
        self.translate(Step::Across, &Shift::across(at, source, self.order, self.truncation), from, local);
    }

    fn p2l(&self, at: Cube, _: Cube, sources: Cloud<T>, local: &mut [T]) {
        let order = self.order + self.layout.dipole.map_or(0, |_| 1);
        let moments = self.moments(sources, order, at, |y, s| self.basis.singular(order, y, s));
        add(T::of(1.0), &moments.charge, local);
        if self.layout.dipole.is_some() {
            (0..3).for_each(|a| self.gradient.lower(a, order, T::of(-1.0), &moments.dipole[a], local));
        }
    }

    fn l2l(&self, at: Cube, parent: Cube, from: &[T], local: &mut [T]) {
        self.translate(Step::Down, &Shift::down(at, parent, self.order), from, local);
    }

    fn l2p(&self, at: Cube, local: &[T], targets: &[[f64; 3]], values: &mut [T]) {
        let p = self.order;
        let derive = |a: usize, c: &[T]| {
            let mut to = vec![T::of(0.0); c.len()];
            self.gradient.lower(a, p, T::of(1.0), c, &mut to);
            to
        };
        let row = |x: [f64; 3]| {
            let mut r = vec![T::of(0.0); p * p];
            self.basis.regular(p, x.map(T::of), &mut r);
            r
        };
        self.evaluate(at, local, &derive, &row, targets, values);
    }

    fn m2p(&self, source: Cube, multipole: &[T], targets: &[[f64; 3]], values: &mut [T]) {
        let derive = |a: usize, c: &[T]| {
            let order = c.len().isqrt() + 1;
            let mut to = vec![T::of(0.0); order * order];
            self.gradient.raise(a, order, T::of(-1.0), c, &mut to);
            to
        };
        let order = self.order + self.derivatives();
        let row = |x: [f64; 3]| {
            let mut s = vec![T::of(0.0); order * order];
            self.basis.singular(order, x, &mut s);
            s
        };
        self.evaluate(source, multipole, &derive, &row, targets, values);
    }

    fn p2p(&self, sources: Cloud<T>, targets: &[[f64; 3]], same: bool, values: &mut [T]) {
        crate::pairs::add(&self.kernels, sources, targets, same, values);
    }

    fn admissible(&self, at: Cube, source: Cube) -> bool {
        m2p_valid(at, source)
    }

    fn admissible_m2l(&self, at: Cube, source: Cube) -> bool {
        m2l_valid(at, source)
    }
}

/// Radius of the sphere in [`m2p_valid`], in sides of the source.
pub const M2P_RADIUS: f64 = RADIUS * ROUNDING;

/// Whether all of `at` lies outside the sphere around `source`.
pub fn m2p_valid(at: Cube, source: Cube) -> bool {
    let gap = |a: usize| ((at.center[a] - source.center[a]).abs() - 0.5 * at.side).max(0.0);
    longer([gap(0), gap(1), gap(2)], sphere(source))
}

/// Whether the spheres around the boxes are apart.
pub fn m2l_valid(at: Cube, source: Cube) -> bool {
    longer(std::array::from_fn(|a| at.center[a] - source.center[a]), sphere(at) + sphere(source))
}

/// Whether a vector is longer than `length`. Coordinates are divided by `length` first, so that no square overflows and
/// no square that matters underflows.
fn longer(vector: [f64; 3], length: f64) -> bool {
    vector.map(|x| (x / length).powi(2)).iter().sum::<f64>() > 1.0
}

/// Whether all of `source` lies outside the sphere around `at`.
pub fn p2l_valid(at: Cube, source: Cube) -> bool {
    m2p_valid(source, at)
}
