//! Transposed sums w_j = Σ_i K(x_i − y_j)ᵀ·v_i and their gradients with respect to y_j, for kernels with and without
//! K(−r) = K(r)ᵀ. The oracle is a double loop over matrices that are written out here; gradients are central differences.

use crate::{both, difference, in_turn, strengths, uniform};
use fmm::{
    AnyFamily, Cuda, DeviceStream, Error, Fmm, Gravity, Harmonic2d, Lane, Laplace, LaplaceDipole, LaplaceMixed, Method,
    Outputs, Plan, Precision, SelfInteraction, Stokes, StokesPressure, Stresslet, Symbol, Targets, Traced, Yukawa,
};
use std::f64::consts::PI;

/// K(r), one row per value.
type Matrix = fn([f64; 3]) -> Vec<Vec<f64>>;
/// A kernel of parameters, r and strengths, to be recorded.
type Recorded = fn(&[Symbol], &[Symbol], &[Symbol]) -> Vec<Symbol>;

fn norm(r: [f64; 3]) -> f64 {
    r.iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn laplace(r: [f64; 3]) -> Vec<Vec<f64>> {
    vec![vec![1.0 / (4.0 * PI * norm(r))]]
}

fn dipole(r: [f64; 3]) -> Vec<Vec<f64>> {
    vec![r.map(|x| x / (4.0 * PI * norm(r).powi(3))).to_vec()]
}

fn mixed(r: [f64; 3]) -> Vec<Vec<f64>> {
    vec![[&laplace(r)[0][..], &dipole(r)[0]].concat()]
}

fn yukawa(r: [f64; 3]) -> Vec<Vec<f64>> {
    vec![vec![(-3.0 * norm(r)).exp() / (4.0 * PI * norm(r))]]
}

fn stokes(r: [f64; 3]) -> Vec<Vec<f64>> {
    let entry = |i: usize, k: usize| f64::from(u8::from(i == k)) / norm(r) + r[i] * r[k] / norm(r).powi(3);
    (0..3).map(|i| (0..3).map(|k| entry(i, k) / (8.0 * PI * 0.7)).collect()).collect()
}

fn stresslet(r: [f64; 3]) -> Vec<Vec<f64>> {
    let entry = |i: usize, k: usize| 3.0 * r[i] * r[k / 3] * r[k % 3] / norm(r).powi(5);
    (0..3).map(|i| (0..9).map(|k| entry(i, k) / (8.0 * PI * 0.7)).collect()).collect()
}

/// Two strengths, one value.
fn wide(r: [f64; 3]) -> Vec<Vec<f64>> {
    vec![vec![1.0 / norm(r) + 0.3 * r[0] / norm(r).powi(3), r[1] / norm(r).powi(3)]]
}

/// As many strengths as values, but K(−r) ≠ K(r)ᵀ.
fn square(r: [f64; 3]) -> Vec<Vec<f64>> {
    vec![vec![1.0 / norm(r), 0.4 * r[0] / norm(r).powi(3)], vec![0.0, 1.0 / norm(r)]]
}

fn traced_wide(p: &[Symbol], r: &[Symbol], q: &[Symbol]) -> Vec<Symbol> {
    let d = (r[0] * r[0] + r[1] * r[1] + r[2] * r[2]).sqrt();
    let d3 = d * d * d;
    vec![q[0] * (1.0 / d + p[0] * r[0] / d3) + q[1] * r[1] / d3]
}

fn traced_square(p: &[Symbol], r: &[Symbol], q: &[Symbol]) -> Vec<Symbol> {
    let d = (r[0] * r[0] + r[1] * r[1] + r[2] * r[2]).sqrt();
    vec![q[0] / d + p[0] * q[1] * r[0] / (d * d * d), q[1] / d]
}

fn own(name: &str, length: f64, n: usize, f: Recorded) -> AnyFamily {
    Traced::general(name, &[("l", length)], n, |r, q, p| f(p, r, q)).unwrap().into()
}

fn families() -> Vec<(AnyFamily, Matrix)> {
    vec![
        (Laplace.into(), laplace),
        (LaplaceDipole.into(), dipole),
        (LaplaceMixed.into(), mixed),
        (Yukawa { kappa: 3.0 }.into(), yukawa),
        (Stokes { mu: 0.7 }.into(), stokes),
        (StokesPressure { mu: 0.7 }.into(), stokes),
        (Stresslet { mu: 0.7 }.into(), stresslet),
        (own("wide", 0.3, 2, traced_wide), wide),
        (own("square", 0.4, 2, traced_square), square),
    ]
}

fn at(points: &[f64], i: usize) -> [f64; 3] {
    [points[3 * i], points[3 * i + 1], points[3 * i + 2]]
}

/// The potential and the gradient of the transposed sums at the `sources` in `some`. A pair at distance 0 adds nothing.
fn oracle(k: Matrix, targets: &[f64], v: &[f64], sources: &[f64], some: &[usize]) -> (Vec<f64>, Vec<f64>) {
    let at_point = |y: [f64; 3]| {
        let mut w = Vec::new();
        for (i, v) in v.chunks_exact(v.len() / (targets.len() / 3)).enumerate() {
            let x = at(targets, i);
            let r = [x[0] - y[0], x[1] - y[1], x[2] - y[2]];
            if norm(r) < 1e-3 {
                continue;
            }
            let rows = k(r);
            w.resize(rows[0].len(), 0.0);
            rows.iter().zip(v).for_each(|(row, v)| w.iter_mut().zip(row).for_each(|(w, k)| *w += k * v));
        }
        w
    };
    let (mut potential, mut gradient) = (Vec::new(), Vec::new());
    for &j in some {
        let y = at(sources, j);
        // Fourth order in the step.
        let beside = |a: usize, step: f64| at_point(std::array::from_fn(|b| y[b] + if a == b { step } else { 0.0 }));
        let h = 1e-4;
        let slopes = [0, 1, 2].map(|a| [1.0, -1.0, 2.0, -2.0].map(|s| beside(a, s * h)));
        let w = at_point(y);
        for s in 0..w.len() {
            for [near, back, far, far_back] in &slopes {
                gradient.push((8.0 * (near[s] - back[s]) - (far[s] - far_back[s])) / (12.0 * h));
            }
        }
        potential.extend(w);
    }
    (potential, gradient)
}

fn rows(all: &[f64], n: usize, some: &[usize]) -> Vec<f64> {
    let c = all.len() / n;
    some.iter().flat_map(|&i| all[c * i..c * (i + 1)].to_vec()).collect()
}

/// Points on a lattice with random shifts, so that no two are closer than the steps of differences.
fn apart(n: usize, seed: u64) -> Vec<f64> {
    let shift = uniform(n, seed);
    let place = |i: usize| [i % 13, i / 13 % 13, i / 169].map(|k| k as f64 / 13.0);
    (0..n).flat_map(|i| place(i).into_iter().zip(at(&shift, i)).map(|(x, s)| x + 0.02 * s)).collect()
}

fn check(plan: &Plan, k: Matrix, points: [&[f64]; 2], c: usize, tolerance: f64, what: &str) {
    let [targets, sources] = points;
    let (m, n) = (targets.len() / 3, sources.len() / 3);
    let some: Vec<usize> = (0..n).step_by(n / 20).collect();
    let v = strengths(c * m, 9);
    let back = plan.transposed(both()).unwrap();
    assert_eq!((back.n_sources(), back.n_targets(), back.strengths()), (m, n, c), "{what}");
    let out = back.apply(&v).unwrap();
    let (potential, gradient) = oracle(k, targets, &v, sources, &some);
    for (name, found, expected) in [("w", &out.potential, &potential), ("gradient", &out.gradient, &gradient)] {
        let error = difference(&rows(found, n, &some), expected);
        assert!(error <= tolerance, "{what}: {name} errs by {error:e}");
    }
    // The same by its other door, and against direct sums of the library.
    assert!(difference(&plan.apply_transpose(&v).unwrap(), &out.potential) <= 2.0 * tolerance, "{what}");
    assert!(back.verify(&v, 300).unwrap().worst() <= tolerance, "{what}");
}

#[test]
fn every_kernel_has_transposed_sums_with_gradients() {
    let (sources, targets) = (apart(1900, 1), apart(1500, 2).iter().map(|x| x + 0.038).collect::<Vec<_>>());
    for (turn, (family, k)) in families().into_iter().enumerate() {
        let c = k([0.1, 0.2, 0.3]).len();
        let methods = [(Method::EquivalentDensities, 1e-6), (Method::Direct, 1e-7)].into_iter().enumerate();
        for (_, (method, tolerance)) in methods.filter(|(m, _)| in_turn(turn + m, 2)) {
            let what = format!("{family:?} {method:?}");
            let fmm = Fmm::new(family.clone()).method(method);
            let fmm = if method == Method::Direct { fmm } else { fmm.tolerance(tolerance) };
            check(&fmm.plan(&sources, &targets).unwrap(), k, [&targets, &sources], c, tolerance, &what);
        }
        if !in_turn(turn + 1, 2) {
            continue;
        }
        let fmm = Fmm::new(family.clone()).method(Method::EquivalentDensities).tolerance(1e-5);
        let plan = fmm.plan(&sources, Targets::Sources).unwrap();
        check(&plan, k, [&sources, &sources], c, 1e-5, &format!("{family:?} at its sources"));
        let probe = plan.transposed(both()).unwrap().describe().probe.unwrap();
        assert!(probe.outputs.iter().all(|o| o.error <= 1e-5), "{probe:?}");
    }
}

#[test]
fn other_methods_and_precisions() {
    let (sources, targets) = (apart(1900, 3), apart(1500, 4).iter().map(|x| x + 0.038).collect::<Vec<_>>());
    let mixed_sums = Fmm::new(LaplaceMixed).tolerance(1e-4);
    for method in [Method::SphericalHarmonics, Method::Treecode] {
        let plan = mixed_sums.clone().method(method).plan(&sources, &targets).unwrap();
        check(&plan, mixed, [&targets, &sources], 1, 1e-4, &format!("{method:?}"));
        let plan = Fmm::new(Laplace).tolerance(1e-4).method(method).plan(&sources, &targets).unwrap();
        check(&plan, laplace, [&targets, &sources], 1, 1e-4, &format!("{method:?}"));
    }
    let fmm = mixed_sums.precision(Precision::F32).method(Method::EquivalentDensities);
    check(&fmm.plan(&sources, &targets).unwrap(), mixed, [&targets, &sources], 1, 1e-4, "f32");
    // An order instead of a tolerance.
    let plan = Fmm::new(Stresslet { mu: 0.7 }).order(9).plan(&sources, &targets).unwrap();
    check(&plan, stresslet, [&targets, &sources], 3, 1e-4, "order 9");
    // With loops of the system's C compiler.
    let fmm = Fmm::new(own("wide", 0.3, 2, traced_wide)).compiled().tolerance(1e-5);
    check(&fmm.plan(&sources, &targets).unwrap(), wide, [&targets, &sources], 1, 1e-5, "compiled");
}

/// ⟨Aᵀv, q⟩ = ⟨v, Aq⟩, for subsets, smooth kernels that act on their own source, and softened gravity.
#[test]
fn transposed_sums_are_adjoint() {
    let x = uniform(2500, 5);
    let some: Vec<usize> = (0..2500).step_by(9).chain([4, 4]).collect();
    let smooth = Traced::general("smooth", &[("l", 0.5)], 2, |r, q, p| {
        let s = (r[0] * r[0] + r[1] * r[1] + r[2] * r[2]) / (p[0] * p[0]);
        vec![(-s).exp() * (q[0] + q[1] * (2.0 * r[2]).sin())]
    });
    let skipping = AnyFamily::from(smooth.clone().unwrap()).self_interaction(SelfInteraction::Skip);
    for family in [smooth.unwrap().into(), skipping, LaplaceDipole.into(), Gravity { g: 1.0, softening: 0.01 }.into()] {
        for method in [Method::Auto, Method::Direct] {
            for (targets, m) in [(Targets::Sources, 2500), (Targets::Subset(&some), some.len())] {
                let plan = Fmm::new(family.clone()).method(method).tolerance(1e-7).plan(&x, targets).unwrap();
                let (q, v) = (strengths(plan.strengths() * 2500, 6), strengths(m, 7));
                let (aq, atv) = (plan.apply(&q).unwrap().potential, plan.apply_transpose(&v).unwrap());
                let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
                let size = dot(&aq, &aq).sqrt() * dot(&v, &v).sqrt();
                let gap = (dot(&atv, &q) - dot(&v, &aq)).abs() / size;
                assert!(gap <= 2e-7, "{family:?} {method:?}: {gap:e}");
            }
        }
    }
}

#[test]
fn a_transposed_plan_follows_the_points() {
    let (x, y) = (uniform(3000, 1), uniform(3000, 2));
    let mut plan = Fmm::new(LaplaceDipole).tolerance(1e-5).plan(&x, Targets::Sources).unwrap();
    let v = strengths(3000, 3);
    let before = plan.transposed(both()).unwrap();
    assert!(std::sync::Arc::ptr_eq(&before, &plan.transposed(both()).unwrap()));
    plan.set_points(&y, Targets::Sources).unwrap();
    let after = plan.transposed(both()).unwrap().apply(&v).unwrap();
    let fresh = Fmm::new(LaplaceDipole).tolerance(1e-5).plan(&y, Targets::Sources).unwrap();
    assert!(difference(&after.gradient, &fresh.transposed(both()).unwrap().apply(&v).unwrap().gradient) <= 2e-5);
    assert!(difference(&before.apply(&v).unwrap().potential, &after.potential) > 0.1);
}

#[test]
fn what_has_no_transposed_sums_says_so() {
    let x = uniform(100, 1);
    let refused = |fmm: Fmm, dim: usize| {
        let plan = fmm.plan(&x[..50 * dim], Targets::Sources).unwrap();
        let v = vec![1.0; plan.n_targets() * plan.components(Outputs::POTENTIAL)];
        assert_eq!(plan.apply_transpose(&v).err(), plan.transposed(Outputs::POTENTIAL).err());
        plan.transposed(Outputs::POTENTIAL).err().unwrap()
    };
    let error = refused(Fmm::new(Harmonic2d), 2);
    assert!(matches!(error, Error::Unsupported { operation: "a transposed sum", .. }), "{error}");
    let kernel = Traced::expression("q/sqrt(r*r + e*e)").unwrap().attribute("e").unwrap();
    let error = refused(Fmm::new(kernel).attribute("e", &[0.1; 50]), 3);
    assert!(error.to_string().contains("attributes"), "{error}");
    let plan = Fmm::new(Stresslet { mu: 1.0 }).plan(&x[..150], Targets::Sources).unwrap();
    let error = plan.transposed(both() | Outputs::HESSIAN).err().unwrap();
    assert!(matches!(error, Error::TooMany { found: 90, limit: 60, .. }), "{error}");
    assert!(plan.transposed(Outputs::PRESSURE).is_err() && plan.transposed(Outputs::empty()).is_err());
    assert!(matches!(plan.apply_transpose(&[1.0; 149]), Err(Error::Shape { found: 149, expected: 150, .. })));
    // Sums over nothing.
    let none = Fmm::new(LaplaceDipole).plan(&x, Targets::Points(&[])).unwrap();
    assert_eq!(none.apply_transpose(&[]).unwrap(), vec![0.0; 300]);
    assert_eq!(none.transposed(both()).unwrap().apply::<f64>(&[]).unwrap().gradient.len(), 900);
}

#[test]
#[ignore = "needs a GPU"]
fn transposed_sums_on_a_gpu() {
    let cuda = Cuda::default();
    let (sources, targets) = (apart(1900, 1), apart(1500, 2).iter().map(|x| x + 0.038).collect::<Vec<_>>());
    let [s, t] = [&sources, &targets].map(|x| cuda.array(x).unwrap());
    let null = DeviceStream::Null;
    for (family, k) in families() {
        let (c, what) = (k([0.1, 0.2, 0.3]).len(), format!("{family:?}"));
        let fmm = Fmm::new(family).backend(cuda).method(Method::EquivalentDensities).tolerance(1e-4);
        check(&fmm.plan(&sources, &targets).unwrap(), k, [&targets, &sources], c, 1e-4, &what);
        // Arrays on the device.
        let plan = fmm.plan_on_device(&s, Some(&t), &null).unwrap();
        let v = strengths(c * 1500, 9);
        let back = plan.transposed(both()).unwrap();
        let out = back.device_output::<f64>().unwrap();
        back.apply_on_device(&cuda.array(&v).unwrap(), &out, &null).unwrap();
        back.synchronize().unwrap();
        let (found, some) = (out.download::<f64>().unwrap(), (0..1900).step_by(30).collect::<Vec<_>>());
        let (potential, gradient) = oracle(k, &targets, &v, &sources, &some);
        assert!(difference(&rows(&found.potential, 1900, &some), &potential) <= 1e-4, "{what}");
        assert!(difference(&rows(&found.gradient, 1900, &some), &gradient) <= 1e-4, "{what}");
    }
}
