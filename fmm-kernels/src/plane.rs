//! Kernels of the plane with a complex field: charges Γ log(z − z_j) and poles m/(z_j − z).
//!
//! With g = 1/(z_j − z), a pole has the field f = m g and the derivatives f′ = m g², f″ = 2 m g³; a charge has
//! f = Γ log(z − z_j), f′ = −Γ g, f″ = −Γ g². Values are Re f, or Re f and Im f. Their derivatives follow from
//! ∂f/∂x = f′ and ∂f/∂y = i f′.
//!
//! | kernel | strengths | values | factor of the sum |
//! |---|---|---|---|
//! | [`Harmonic2d`] | Re m, Im m | Re f, Im f (Goude & Engblom 2012, eq. 5.1) | 1 |
//! | [`Laplace2d`] | Γ | Re f | −1/(2π) |
//! | [`Laplace2dDipole`] | d_x, d_y: the pole m = d_x + i d_y | Re f | −1/(2π) |
//! | [`Laplace2dMixed`] | Γ, d_x, d_y | Re f | −1/(2π) |

use fmm_traits::{Kernel, Lane};
use std::f64::consts::FRAC_1_PI;

/// Values of `CHARGES` charges (0 or 1) and a pole of `POLES` real numbers (0: none, 1: real, 2: complex), with their
/// derivatives up to the order `D`, in the layout of [`Kernel::eval_hessian`]. `ln_unit` is the logarithm of the unit
/// of length.
#[inline(always)]
fn field<V: Lane, const CHARGES: usize, const POLES: usize, const D: usize>(
    ln_unit: V,
    r: &[V],
    q: &[V],
    out: &mut [V],
) {
    let [zero, one] = [V::splat(0.0), V::splat(1.0)];
    // Fields of a unit charge and of a unit pole, with their derivatives: Re, Im.
    let (mut charge, mut pole) = ([[zero; 2]; 3], [[zero; 2]; 3]);
    let mut square = V::nonzero_square(r);
    if CHARGES == 1 {
        let r2 = r[0].mul_add(r[0], r[1] * r[1]);
        let itself = r2.eq(zero);
        square = V::select(itself, one, r2);
        charge[0][0] = V::select(itself, zero, V::splat(0.5).mul_add(square.ln(), ln_unit));
    }
    // The number that all poles of the pair have in common; 1 if it is a factor of g.
    let mut common = one;
    if CHARGES == 0 && POLES == 1 && D == 0 {
        // Without derivatives, m/|r|² saves a product.
        common = one / square;
        pole[0] = [-r[0], r[1]];
    } else if POLES + D > 0 {
        let w = one / square;
        let g = [-(r[0] * w), r[1] * w];
        pole[0] = g;
        charge[1] = [-g[0], -g[1]];
        if (POLES > 0 && D > 0) || D > 1 {
            let g2 = [g[0].mul_add(g[0], -(g[1] * g[1])), V::splat(2.0) * g[0] * g[1]];
            pole[1] = g2;
            charge[2] = [-g2[0], -g2[1]];
            if D > 1 {
                let twice = [V::splat(2.0) * g[0], V::splat(2.0) * g[1]];
                pole[2] = [g2[0].mul_add(twice[0], -(g2[1] * twice[1])), g2[0].mul_add(twice[1], g2[1] * twice[0])];
            }
        }
    }
    let values = out.len() / [1, 4, 10][D];
    for v in 0..values {
        // Im f is Re i³f.
        let turns = 3 * v;
        macro_rules! part {
            ($derivative:expr, $turns:expr) => {
                part::<V, CHARGES, POLES>(charge[$derivative], pole[$derivative], $turns, common, q)
            };
        }
        out[v] = part!(0, turns);
        if D > 0 {
            let at = values + 3 * v;
            (out[at], out[at + 1], out[at + 2]) = (part!(1, turns), part!(1, turns + 1), zero);
        }
        if D > 1 {
            let at = 4 * values + 6 * v;
            (out[at], out[at + 1], out[at + 2]) = (part!(2, turns), part!(2, turns + 1), zero);
            (out[at + 3], out[at + 4], out[at + 5]) = (part!(2, turns + 2), zero, zero);
        }
    }
}

/// Re i^turns (Γ·charge + m·common·pole). The imaginary part of a complex m multiplies Re i^(turns + 1) pole.
#[inline(always)]
fn part<V: Lane, const CHARGES: usize, const POLES: usize>(
    charge: [V; 2],
    pole: [V; 2],
    turns: usize,
    common: V,
    q: &[V],
) -> V {
    match (CHARGES, POLES) {
        (1, 0) => q[0] * turned(charge, turns),
        (1, 1) => q[1].mul_add(turned(pole, turns), q[0] * turned(charge, turns)),
        (1, _) => {
            q[1].mul_add(turned(pole, turns), q[2].mul_add(turned(pole, turns + 1), q[0] * turned(charge, turns)))
        }
        (_, 1) => q[0] * common * turned(pole, turns),
        _ => q[0].mul_add(turned(pole, turns), q[1] * turned(pole, turns + 1)),
    }
}

/// Re i^turns z.
#[inline(always)]
fn turned<V: Lane>([re, im]: [V; 2], turns: usize) -> V {
    match turns % 4 {
        0 => re,
        1 => -im,
        2 => -re,
        _ => im,
    }
}

macro_rules! plane {
    ($(#[$doc:meta])* $kernel:ident $name:literal charges $charges:literal poles $poles:literal values $values:literal
        reciprocal $reciprocal:literal scale $scale:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
        pub struct $kernel;

        impl Kernel for $kernel {
            const NAME: &'static str = $name;
            const DIM: usize = 2;
            const STRENGTHS: usize = $charges + $poles;
            const VALUES: usize = $values;
            const COMPILED: usize = 2;
            const RECIPROCAL: bool = $reciprocal;
            #[inline(always)]
            fn eval<V: Lane>(p: &[V], r: &[V], q: &[V], out: &mut [V]) {
                field::<V, $charges, $poles, 0>(unit::<V, $charges>(p), r, q, &mut out[..$values]);
            }
            #[inline(always)]
            fn eval_gradient<V: Lane>(p: &[V], r: &[V], q: &[V], out: &mut [V]) {
                field::<V, $charges, $poles, 1>(unit::<V, $charges>(p), r, q, &mut out[..4 * $values]);
            }
            #[inline(always)]
            fn eval_hessian<V: Lane>(p: &[V], r: &[V], q: &[V], out: &mut [V]) {
                field::<V, $charges, $poles, 2>(unit::<V, $charges>(p), r, q, &mut out[..10 * $values]);
            }
            fn value_degree(_: usize) -> i32 {
                0
            }
            fn strength_degree(j: usize) -> i32 {
                [0, -1, -1, -1][j + 1 - $charges]
            }
            fn parameters(&self) -> Vec<f64> {
                vec![0.0; $charges]
            }
            fn dilated(params: &[f64], h: f64) -> Option<Vec<f64>> {
                ($charges > 0).then(|| params.iter().map(|ln_unit| ln_unit + h.ln()).collect())
            }
            fn scale(&self) -> f64 {
                $scale
            }
        }
    };
}

/// The logarithm of the unit of length: the only parameter of a kernel with charges.
#[inline(always)]
fn unit<V: Lane, const CHARGES: usize>(params: &[V]) -> V {
    if CHARGES == 1 { params[0] } else { V::splat(0.0) }
}

plane!(
    /// Σ m_j/(z_j − z), complex strengths and values.
    Harmonic2d "harmonic2d" charges 0 poles 2 values 2 reciprocal false scale 1.0
);
plane!(
    /// [`Harmonic2d`] for real strengths, at half the work.
    Harmonic2dReal "harmonic2d_real" charges 0 poles 1 values 2 reciprocal false scale 1.0
);
plane!(
    /// −1/(2π) Σ Γ_j ln|z − z_j|.
    Laplace2d "laplace2d" charges 1 poles 0 values 1 reciprocal true scale -0.5 * FRAC_1_PI
);
plane!(
    /// 1/(2π) Σ d_j·r/|r|², r = z − z_j: the source gradient of [`Laplace2d`].
    Laplace2dDipole "laplace2d_dipole" charges 0 poles 2 values 1 reciprocal false scale -0.5 * FRAC_1_PI
);
plane!(
    /// The sum of [`Laplace2d`] and [`Laplace2dDipole`]: charge, then dipole.
    Laplace2dMixed "laplace2d_mixed" charges 1 poles 2 values 1 reciprocal false scale -0.5 * FRAC_1_PI
);
