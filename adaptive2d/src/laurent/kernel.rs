//! Kernels whose fields have Laurent series, as a trait and as a value.

use fmm_kernels::plane::{Harmonic2d, Harmonic2dReal, Laplace2d, Laplace2dDipole, Laplace2dMixed};
use fmm_traits::kernel::Eval;
use fmm_traits::{Gradient, Hessian, Kernel, Member};
use std::fmt;

/// A kernel whose values are Re f, or Re f and Im f, of a complex field f = Γ log(z − z_j) + m/(z_j − z).
///
/// A kernel with charges has one parameter, the logarithm of the unit of length; others have none.
pub trait Analytic: Kernel {
    /// What each strength multiplies: 0 for a charge Γ, 1 for a pole m. At most one charge, the first strength; then
    /// nothing, a real pole, or the real and the imaginary part of a pole. Charges give no Im f.
    const EXPONENTS: &'static [u8];
    /// The kernel for sources whose last strength is 0, if it is faster; else `Self`.
    type Real: Analytic;

    /// Refuses to compile exponents without a meaning.
    const VALID: () = {
        let (n, e) = (Self::EXPONENTS.len(), Self::EXPONENTS);
        let charges = if n > 0 && e[0] == 0 { 1 } else { 0 };
        let mut j = charges;
        while j < n {
            assert!(e[j] == 1, "an exponent is neither that of the first strength nor 1");
            j += 1;
        }
        assert!(n == Self::STRENGTHS && n > 0 && n - charges <= 2, "EXPONENTS are not those of charge and pole");
        assert!(Self::DIM == 2 && Self::VALUES >= 1 && Self::VALUES + charges <= 2, "values are not Re f or f");
    };
}

impl Analytic for Harmonic2d {
    const EXPONENTS: &'static [u8] = &[1, 1];
    type Real = Harmonic2dReal;
}
impl Analytic for Harmonic2dReal {
    const EXPONENTS: &'static [u8] = &[1];
    type Real = Self;
}
impl Analytic for Laplace2d {
    const EXPONENTS: &'static [u8] = &[0];
    type Real = Self;
}
impl Analytic for Laplace2dDipole {
    const EXPONENTS: &'static [u8] = &[1, 1];
    type Real = Self;
}
impl Analytic for Laplace2dMixed {
    const EXPONENTS: &'static [u8] = &[0, 1, 1];
    type Real = Self;
}

/// A field of the plane and its first two derivatives: Re f, Im f, Re f′, Im f′, Re f″, Im f″. A kernel with its
/// Hessian has each of them among its values, but for the sign.
pub type Jet = [f64; 6];

/// Where the number `c` of a [`Jet`] stands among the values of a kernel of `values` values with `derivatives` (0 to
/// 2), and whether it stands there with the other sign: f′ = ∂u/∂x − i ∂u/∂y for u = Re f, and f″ = ∂²u/∂x² − i
/// ∂²u/∂x∂y.
pub const fn slot_of(values: usize, c: usize) -> (usize, bool) {
    ([0, 1, values, values + 1, 4 * values, 4 * values + 1][c], c == 3 || c == 5)
}

/// Most values per target: a complex potential, its gradients, and three second derivatives of each part.
pub const MAX_VALUES: usize = 12;

/// An [`Analytic`] kernel as a value.
#[derive(Clone, Copy)]
pub struct PlaneKernel {
    name: &'static str,
    exponents: &'static [u8],
    potentials: usize,
    scale: f64,
    eval: Eval,
    members: fn(usize) -> Member,
    real: Option<fn(usize) -> Member>,
}

impl<K: Analytic> From<K> for PlaneKernel {
    fn from(kernel: K) -> Self {
        let () = K::VALID;
        let real: fn(usize) -> Member = member::<K::Real>;
        PlaneKernel {
            name: K::NAME,
            exponents: K::EXPONENTS,
            potentials: K::VALUES,
            scale: kernel.scale(),
            eval: K::eval_hessian::<f64>,
            members: member::<K>,
            real: (K::Real::STRENGTHS < K::STRENGTHS).then_some(real),
        }
    }
}

fn member<K: Kernel>(derivatives: usize) -> Member {
    match derivatives {
        0 => Member::of::<K>(),
        1 => Member::of::<Gradient<K>>(),
        _ => Member::of::<Hessian<K>>(),
    }
}

impl PartialEq for PlaneKernel {
    fn eq(&self, other: &Self) -> bool {
        self.member(0).id == other.member(0).id
    }
}

impl fmt::Debug for PlaneKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.name, self.exponents)
    }
}

impl PlaneKernel {
    /// The kernels of this project.
    pub fn all() -> [PlaneKernel; 4] {
        [Harmonic2d.into(), Laplace2d.into(), Laplace2dDipole.into(), Laplace2dMixed.into()]
    }
    /// Name of the kernel.
    pub fn name(self) -> &'static str {
        self.name
    }
    /// [`Analytic::EXPONENTS`].
    pub fn exponents(self) -> &'static [u8] {
        self.exponents
    }
    /// Whether a source has a charge, the factor of log(z − z_j). It is the first strength.
    pub fn charges(self) -> bool {
        self.exponents[0] == 0
    }
    /// Whether a source has a pole m/(z_j − z). The last strengths are Re m and Im m: a dipole d is the pole d_x + i
    /// d_y.
    pub fn poles(self) -> bool {
        self.exponents.contains(&1)
    }
    /// Whether potentials are complex.
    pub fn complex(self) -> bool {
        self.potentials == 2
    }
    /// Real strengths per source.
    pub fn strengths(self) -> usize {
        self.exponents.len()
    }
    /// The places of the strengths among Γ, Re m and Im m; if `real`, of all but the last strength.
    pub fn places(self, real: bool) -> std::ops::Range<usize> {
        let first = usize::from(!self.charges());
        first..first + self.strengths() - usize::from(real)
    }
    /// Real numbers in a potential.
    pub fn potentials(self) -> usize {
        self.potentials
    }
    /// Real values per target with derivatives up to the order `derivatives`, at most 2: each potential, then ∂x and ∂y
    /// of each, then xx, xy and yy of each.
    pub fn values(self, derivatives: usize) -> usize {
        self.potentials * [1, 3, 6][derivatives]
    }
    /// The kernel with derivatives up to the order `derivatives`.
    pub fn member(self, derivatives: usize) -> Member {
        (self.members)(derivatives)
    }
    /// As [`member`](PlaneKernel::member), for sources whose last strength is 0; `None` if that is not faster.
    pub fn real_member(self, derivatives: usize) -> Option<Member> {
        self.real.map(|real| real(derivatives))
    }
    /// The parameters of the kernel for lengths in the caller's units.
    pub fn parameters(self) -> &'static [f64] {
        if self.charges() { &[0.0] } else { &[] }
    }
    /// The factor of the whole sum.
    pub fn scale(self) -> f64 {
        self.scale
    }
    /// Charge and pole of source `i`.
    pub(super) fn strength(self, strengths: &[f64], i: usize) -> (f64, [f64; 2]) {
        let own = &strengths[self.strengths() * i..][..self.strengths()];
        let poles = &own[usize::from(self.charges())..];
        (if self.charges() { own[0] } else { 0.0 }, [0, 1].map(|c| poles.get(c).copied().unwrap_or(0.0)))
    }
    /// The field of a source at r = target − source. Im f is 0 for real potentials.
    pub(super) fn pair(self, r: [f64; 2], strengths: &[f64]) -> Jet {
        let mut values = [0.0; 20];
        (self.eval)(self.parameters(), &r, strengths, &mut values[..10 * self.potentials]);
        self.jet(&values)
    }
    /// The field among the values of a [`member`](PlaneKernel::member). Derivatives that the member does not have are
    /// 0.
    pub fn jet(self, values: &[f64]) -> Jet {
        let value = |slot: usize| values.get(slot).copied().unwrap_or(0.0);
        std::array::from_fn(|c| match slot_of(self.potentials, c) {
            _ if c == 1 && !self.complex() => 0.0,
            (slot, true) => -value(slot),
            (slot, false) => value(slot),
        })
    }
    /// All values of a target from the sum of the fields f. Those without derivatives come first. The derivatives of
    /// Re f and Im f follow from ∂f/∂x = f′ and ∂f/∂y = if′.
    #[inline(always)]
    pub fn numbers(self, f: Jet) -> [f64; MAX_VALUES] {
        let [re, im, re1, im1, re2, im2] = f.map(|x| x * self.scale);
        if self.complex() {
            [re, im, re1, -im1, im1, re1, re2, -im2, -re2, im2, re2, -im2]
        } else {
            [re, re1, -im1, re2, -im2, -re2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
        }
    }
}
