//! The shipped families against what their documentation states.
//!
//! - every promise of `Kernel` and `Family` (testkit), and the differential equations
//! - what a plan tries of them, on points of several extents
//! - dipoles and stresslets as limits of two opposite charges and forces; net flux and pressure
//! - limits of the parameters: κ = 0, κr ≫ 700, ε = 0, the near radius, bad values
//! - the columns handed to a plan

use approx::assert_abs_diff_eq;
use fmm_kernels::gravity::Plummer;
use fmm_kernels::laplace::{DipolePotential, MixedPotential};
use fmm_kernels::plane::{Harmonic2d, Harmonic2dReal, Laplace2d, Laplace2dDipole, Laplace2dMixed};
use fmm_kernels::stokes::{CheckValues, Force, ForceDipole, ForceSink, Velocity, VelocityPressure};
use fmm_kernels::{Gravity, Laplace, LaplaceDipole, LaplaceMixed, Stokes, StokesPressure, Stresslet, Yukawa};
use fmm_traits::testkit::kernel::{Jet, check_equation, check_kernel};
use fmm_traits::{Error, Family, Gradient, Kernel, Member, Members, OutputColumns, Outputs, Visitor, facts};
use std::f64::consts::PI;

type Outcome = Result<(), String>;

fn values<K: Kernel>(params: &[f64], r: [f64; 3], strengths: &[f64]) -> Vec<f64> {
    let mut u = vec![0.0; K::VALUES];
    K::eval(params, &r, strengths, &mut u);
    u
}

/// Within `tolerance` of the largest entry.
fn close(got: &[f64], want: &[f64], tolerance: f64) {
    let size = want.iter().fold(1e-300, |m: f64, x| m.max(x.abs()));
    assert_abs_diff_eq!(got, want, epsilon = tolerance * size);
}

/// The kernels that compute a set of outputs, near and far.
struct Chosen;
impl Visitor for Chosen {
    type Output = [Member; 2];
    fn visit<S: Kernel, E: Kernel>(self, _: Vec<OutputColumns>) -> [Member; 2] {
        [Member::of::<S>(), Member::of::<E>()]
    }
}

/// What a plan tries of `family`, for each output and points from very close to very far.
fn facts_hold<F: Family>(family: F) {
    facts::validate(&family).unwrap();
    let Members { check, equivalent, .. } = Members::of::<F>();
    for (output, name) in Outputs::ALL {
        if !family.outputs().contains(output) {
            continue;
        }
        let [near, far] = family.visit(output, Chosen).unwrap();
        for extent in [0.0, 1.0, 1e-12, 1e-3, 50.0, 1e10, 1e-100, 1e100] {
            let found = facts::check(
                &[equivalent.clone(), check.clone(), near.clone(), far.clone()],
                &family.parameters(),
                extent,
            );
            assert_eq!(found, Ok(()), "{name} of {} {:?}", family.name(), family.parameters());
        }
    }
}

#[test]
fn plans_accept_the_facts_of_all_families() {
    facts_hold(Laplace);
    facts_hold(LaplaceDipole);
    facts_hold(LaplaceMixed);
    for kappa in [0.0, 1e-9, 0.7, 12.0, 1e4] {
        facts_hold(Yukawa { kappa });
    }
    for softening in [0.0, 1e-110, 1e-12, 1e-3, 0.3, 100.0] {
        facts_hold(Gravity { g: 6.674e-11, softening });
    }
    for mu in [1e-6, 1.0, 1e5] {
        facts_hold(Stokes { mu });
        facts_hold(StokesPressure { mu });
        facts_hold(Stresslet { mu });
    }
}

#[test]
fn laplace_keeps_its_promises() -> Outcome {
    check_kernel(&Laplace)?;
    check_kernel(&LaplaceDipole)?;
    check_kernel(&LaplaceMixed)?;
    check_equation::<Laplace>(&[], |u| vec![u[0].laplacian()])?;
    check_equation::<DipolePotential>(&[], |u| vec![u[0].laplacian()])?;
    check_equation::<MixedPotential>(&[], |u| vec![u[0].laplacian()])
}

#[test]
fn yukawa_keeps_its_promises() -> Outcome {
    for kappa in [0.0, 0.7, 12.0] {
        check_kernel(&Yukawa { kappa })?;
        check_equation::<Yukawa>(&[kappa], |u| vec![u[0].laplacian() - kappa * kappa * u[0].value])?;
    }
    Ok(())
}

#[test]
fn gravity_keeps_its_promises() -> Outcome {
    check_kernel(&Gravity { g: 6.674e-11, softening: 0.3 })?;
    check_kernel(&Gravity { g: 6.674e-11, softening: 0.0 })?;
    check_equation::<Plummer>(&[0.0], |u| vec![u[0].laplacian()])
}

#[test]
fn stokes_keeps_its_promises() -> Outcome {
    let mu = 1.7;
    check_kernel(&Stokes { mu })?;
    check_kernel(&StokesPressure { mu })?;
    check_kernel(&Stresslet { mu })?;
    let divergence = |u: &[Jet]| (0..3).map(|i| u[i].gradient[i]).sum::<f64>();
    let momentum = move |u: &[Jet]| {
        let mut left: Vec<f64> = (0..3).map(|i| mu * u[i].laplacian() - u[3].gradient[i]).collect();
        left.push(divergence(u));
        left
    };
    check_equation::<Stokes>(&[mu], |u| vec![divergence(u)])?;
    check_equation::<VelocityPressure<Force>>(&[mu], momentum)?;
    check_equation::<VelocityPressure<ForceDipole>>(&[mu], momentum)?;
    check_equation::<VelocityPressure<ForceSink>>(&[mu], momentum)
}

#[test]
fn a_dipole_is_two_opposite_charges() {
    let (r, v, t) = ([0.8, -0.5, 0.3], [0.4, 1.1, -0.6], 1e-5);
    // φ = v·∇_y G: the source moves by ±t·v, the separation by ∓t·v.
    let at = |s: f64| values::<Laplace>(&[], std::array::from_fn(|i| r[i] - s * t * v[i]), &[1.0])[0];
    let limit = (at(1.0) - at(-1.0)) / (2.0 * t);
    close(&values::<DipolePotential>(&[], r, &v), &[limit], 1e-9);
    let charge = values::<Laplace>(&[], r, &[0.7])[0];
    close(&values::<MixedPotential>(&[], r, &[0.7, v[0], v[1], v[2]]), &[charge + limit], 1e-9);
}

#[test]
fn a_stresslet_is_opposite_forces_and_a_sink() {
    let (r, t, mu) = ([0.8, -0.5, 0.3], 1e-5, 0.6);
    let d = [0.3, -0.8, 0.5, -0.8, 1.2, 0.1, 0.5, 0.1, -0.4];
    // D_jk ∂/∂y_k of the flow of a unit force along j, plus the sink −tr D.
    let mut want = values::<VelocityPressure<ForceSink>>(&[mu], r, &[0.0, 0.0, 0.0, -(d[0] + d[4] + d[8])]);
    for k in 0..3 {
        let force = [d[k], d[3 + k], d[6 + k]];
        let at = |s: f64| {
            let moved = std::array::from_fn(|i| r[i] - if i == k { s * t } else { 0.0 });
            values::<VelocityPressure<Force>>(&[mu], moved, &force)
        };
        let (plus, minus) = (at(1.0), at(-1.0));
        (0..4).for_each(|i| want[i] += (plus[i] - minus[i]) / (2.0 * t));
    }
    close(&values::<VelocityPressure<ForceDipole>>(&[mu], r, &d), &want, 1e-8);
    // A torque contributes nothing.
    let torque = [0.0, 1.0, -2.0, -1.0, 0.0, 3.0, 2.0, -3.0, 0.0];
    let rest = values::<VelocityPressure<ForceDipole>>(&[mu], r, &torque);
    assert_abs_diff_eq!(rest[..], [0.0; 4][..], epsilon = 1e-14);
}

#[test]
fn stokes_values_have_the_documented_size() {
    let (r, f, mu) = ([0.3, 0.4, 1.2], [1.0, -2.0, 0.5], 0.25);
    let length: f64 = 1.3;
    let rf = 0.3 - 0.8 + 0.6;
    let factor = Family::scale(&StokesPressure { mu });
    let u = values::<VelocityPressure<Force>>(&[mu], r, &f);
    let velocity = |i: usize| (f[i] / length + r[i] * rf / length.powi(3)) / (8.0 * PI * mu);
    let want = [velocity(0), velocity(1), velocity(2), rf / (4.0 * PI * length.powi(3))];
    close(&u.iter().map(|x| x * factor).collect::<Vec<_>>(), &want, 1e-14);
    close(&values::<Stokes>(&[], r, &f), &u[..3], 1e-15);
    close(&values::<CheckValues<Force>>(&[mu], r, &f), &[u[0], u[1], u[2], u[3] / (2.0 * mu)], 1e-15);
    close(&values::<Velocity<ForceSink>>(&[mu], r, &[f[0], f[1], f[2], 0.0]), &u[..3], 1e-15);
}

#[test]
fn net_flux_is_that_of_the_trace() {
    // Flux through the unit sphere by the 26-point Lebedev rule, exact to degree 7.
    let flux = |flow: &dyn Fn([f64; 3]) -> Vec<f64>| {
        let mut sum = 0.0;
        for i in 0..27 {
            let n = [i % 3, i / 3 % 3, i / 9].map(|x| x as f64 - 1.0);
            let length = n.iter().map(|x| x * x).sum::<f64>();
            let weight = [0.0, 1.0 / 21.0, 4.0 / 105.0, 9.0 / 280.0][length as usize];
            let n = n.map(|x| x / length.sqrt().max(1.0));
            sum += 4.0 * PI * weight * flow(n).iter().zip(n).map(|(u, n)| u * n).sum::<f64>();
        }
        sum
    };
    let d = [0.3, -0.8, 0.5, -0.8, 1.2, 0.1, 0.5, 0.1, -0.4];
    close(&[flux(&|n| values::<Velocity<ForceDipole>>(&[], n, &d))], &[4.0 * PI * (d[0] + d[4] + d[8])], 1e-13);
    close(&[flux(&|n| values::<Velocity<ForceSink>>(&[], n, &[0.0, 0.0, 0.0, 1.0]))], &[-4.0 * PI], 1e-13);
    assert_abs_diff_eq!(flux(&|n| values::<Stokes>(&[], n, &[0.2, 0.5, -0.3])), 0.0, epsilon = 1e-13);
}

#[test]
fn limits_of_the_parameters() {
    let r = [0.8, -0.5, 0.3];
    close(&values::<Gradient<Yukawa>>(&[0.0], r, &[0.7]), &values::<Gradient<Laplace>>(&[], r, &[0.7]), 1e-15);
    assert_eq!(values::<Gradient<Yukawa>>(&[1e6], r, &[0.7]), [0.0; 4]);
    assert_eq!(values::<Gradient<Plummer>>(&[0.0], [0.0; 3], &[0.7]), [0.0; 4]);
    close(&values::<Plummer>(&[0.5], [0.0; 3], &[0.7]), &[1.4], 1e-15);
    assert_eq!(Family::scale(&Gravity { g: 2.0, softening: 0.1 }), -2.0);
    assert_eq!(Gravity { g: 1.0, softening: 0.0 }.near_radius(1e-6), 0.0);
    assert_eq!(Laplace.near_radius(1e-6), 0.0);
}

#[test]
fn the_near_radius_keeps_its_tolerance() {
    for tolerance in [1e-2, 1e-4, 1e-6] {
        let softening = 0.2;
        let radius = Gravity { g: 1.0, softening }.near_radius(tolerance);
        let r = [radius / 3.0, radius * 2.0 / 3.0, radius * 2.0 / 3.0];
        let soft = values::<Gradient<Plummer>>(&[softening], r, &[1.0]);
        let point = values::<Gradient<Laplace>>(&[], r, &[1.0]);
        let error: Vec<f64> = (0..4).map(|i| (soft[i] / point[i] - 1.0).abs()).collect();
        // The gradient decides, and the radius is not larger than it need be.
        assert!(
            error[0] < tolerance && error[1..].iter().all(|&e| e <= tolerance && e > 0.95 * tolerance),
            "{error:?}"
        );
    }
}

#[test]
fn parameters_outside_their_domain_are_named() {
    fn refused(result: Result<(), Error>, parameter: &str) {
        match result {
            Err(Error::Parameter { name, .. }) => assert_eq!(name, parameter),
            other => panic!("{parameter}: {other:?}"),
        }
    }
    for bad in [-1.0, f64::NAN, f64::INFINITY] {
        refused(Family::validate(&Yukawa { kappa: bad }), "kappa");
        refused(Family::validate(&Gravity { g: 1.0, softening: bad }), "softening");
        refused(Family::validate(&Stokes { mu: bad }), "mu");
        refused(Family::validate(&StokesPressure { mu: bad }), "mu");
        refused(Family::validate(&Stresslet { mu: bad }), "mu");
    }
    refused(Family::validate(&Stokes { mu: 0.0 }), "mu");
    refused(Family::validate(&Gravity { g: f64::NAN, softening: 0.0 }), "g");
}

struct Columns;
impl Visitor for Columns {
    type Output = (usize, Vec<OutputColumns>);
    fn visit<S: Kernel, E: Kernel>(self, columns: Vec<OutputColumns>) -> Self::Output {
        (S::VALUES, columns)
    }
}

#[test]
fn pressure_is_an_output_of_its_own() -> Result<(), Error> {
    let all = Outputs::POTENTIAL | Outputs::GRADIENT | Outputs::HESSIAN | Outputs::PRESSURE;
    let (values, columns) = Stresslet { mu: 1.0 }.visit(all, Columns)?;
    assert_eq!(values, 40);
    let row = |output, columns: Vec<usize>| OutputColumns { output, columns };
    // Velocity, pressure | their gradients | their Hessians xx, xy, xz, yy, yz, zz.
    let hessian = |i: usize| [0, 1, 2, 1, 3, 4, 2, 4, 5].map(|k| 16 + 6 * i + k);
    let want = [
        row(Outputs::POTENTIAL, vec![0, 1, 2]),
        row(Outputs::GRADIENT, (4..13).collect()),
        row(Outputs::HESSIAN, (0..3).flat_map(hessian).collect()),
        row(Outputs::PRESSURE, vec![3]),
    ];
    assert_eq!(columns, want);
    // Without pressure its column is not even computed.
    assert_eq!(StokesPressure { mu: 1.0 }.visit(Outputs::GRADIENT, Columns)?.0, 12);
    assert_eq!(
        StokesPressure { mu: 1.0 }.visit(Outputs::PRESSURE, Columns)?,
        (4, vec![row(Outputs::PRESSURE, vec![3])])
    );
    assert!(matches!(Stokes { mu: 1.0 }.visit(Outputs::PRESSURE, Columns), Err(Error::UnsupportedOutput { .. })));
    assert!(matches!(Laplace.visit(Outputs::empty(), Columns), Err(Error::NoOutput)));
    Ok(())
}

/// The fields are analytic: Δu = 0, and Im f is conjugate to Re f. On real poles the complex kernel is the real one.
#[test]
fn kernels_of_the_plane() -> Outcome {
    facts_hold(Harmonic2d);
    facts_hold(Laplace2d);
    facts_hold(Laplace2dDipole);
    facts_hold(Laplace2dMixed);
    check_kernel(&Harmonic2d)?;
    check_kernel(&Harmonic2dReal)?;
    check_kernel(&Laplace2d)?;
    check_kernel(&Laplace2dDipole)?;
    check_kernel(&Laplace2dMixed)?;
    let flat = |u: &[Jet]| vec![u[0].laplacian()];
    check_equation::<Laplace2d>(&[0.0], flat)?;
    check_equation::<Laplace2dDipole>(&[], flat)?;
    check_equation::<Laplace2dMixed>(&[0.0], flat)?;
    let conjugate = |u: &[Jet]| {
        let [re, im] = [u[0].gradient, u[1].gradient];
        vec![re[0] - im[1], re[1] + im[0], u[0].laplacian(), u[1].laplacian()]
    };
    check_equation::<Harmonic2d>(&[], conjugate)?;
    check_equation::<Harmonic2dReal>(&[], conjugate)?;
    let r = [0.3, -0.7];
    let (mut whole, mut real) = ([0.0f64; 20], [0.0f64; 20]);
    Harmonic2d::eval_hessian(&[], &r, &[1.3, 0.0], &mut whole);
    Harmonic2dReal::eval_hessian(&[], &r, &[1.3], &mut real);
    for (a, b) in whole.iter().zip(&real) {
        assert!((a - b).abs() < 1e-14 * (1.0 + a.abs()), "{a} {b}");
    }
    // m/(z_j − z) and ln|r| from their definitions.
    let (mut u, mut ln) = ([0.0f64; 2], [0.0f64]);
    Harmonic2d::eval(&[], &r, &[1.3, -0.4], &mut u);
    let (x, y, square) = (-r[0], -r[1], 0.3f64 * 0.3 + 0.7 * 0.7);
    let expected = [(1.3 * x - 0.4 * y) / square, (-0.4 * x - 1.3 * y) / square];
    assert!((u[0] - expected[0]).abs() < 1e-15 && (u[1] - expected[1]).abs() < 1e-15, "{u:?} {expected:?}");
    Laplace2d::eval(&[2f64.ln()], &r, &[1.5], &mut ln);
    assert!((ln[0] - 1.5 * (2.0 * square.sqrt()).ln()).abs() < 1e-15);
    Ok(())
}
