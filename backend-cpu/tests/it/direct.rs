//! Direct sums against a plain double loop over scalar kernels.

use super::*;
use fmm_kernels::{Gravity, Laplace, LaplaceDipole, LaplaceMixed, Stokes, StokesPressure, Stresslet, Yukawa};
use fmm_traits::testkit::expansion::difference as by_component;

/// A visitor that sums at all sources (`None`; each source skips itself) or at separate points.
struct Loop<'a> {
    params: Vec<f64>,
    scale: f64,
    sources: &'a [f64],
    strengths: &'a [f64],
    targets: Option<&'a [f64]>,
}

impl Visitor for Loop<'_> {
    type Output = Vec<f64>;
    fn visit<S: Kernel, E: Kernel>(self, _: Vec<OutputColumns>) -> Vec<f64> {
        let mut out = Vec::new();
        for (t, x) in self.targets.unwrap_or(self.sources).chunks_exact(3).enumerate() {
            let mut sum = vec![0.0; S::VALUES];
            for (s, y) in self.sources.chunks_exact(3).enumerate() {
                if self.targets.is_none() && s == t {
                    continue;
                }
                let r = [x[0] - y[0], x[1] - y[1], x[2] - y[2]];
                let mut u = vec![0.0; S::VALUES];
                S::eval(&self.params, &r, &self.strengths[s * S::STRENGTHS..][..S::STRENGTHS], &mut u);
                sum.iter_mut().zip(u).for_each(|(sum, u)| *sum += self.scale * u);
            }
            out.extend(sum);
        }
        out
    }
}

/// The sums by a plain double loop.
pub fn plain<F: Known>(
    family: &F,
    outputs: Outputs,
    sources: &[f64],
    strengths: &[f64],
    targets: Option<&[f64]>,
) -> Vec<f64> {
    let (params, scale) = (family.parameters(), family.scale());
    family.visit(outputs, Loop { params, scale, sources, strengths, targets }).unwrap()
}

fn check<F: Known>(family: &F, outputs: Outputs) {
    let (sources, targets) = (CloudKind::FiftyCopies.points(330, 1), uniform(70, 2));
    let q = strengths::<F>(&sources);
    for (targets, at) in [(None, Targets::Sources), (Some(&targets[..]), Targets::Points(&targets))] {
        let expected = plain(family, outputs, &sources, &q, targets);
        let values = family.any().facts(outputs).unwrap().values;
        for (precision, tolerance) in [(Precision::F64, 1e-13), (Precision::F32, 1e-4)] {
            for isa in Isa::available() {
                let found = direct(family, outputs, &sources, &q, at, precision, isa).unwrap();
                let d = by_component(&found, &expected, values);
                assert!(d < tolerance, "{} {} {}: {d:e}", family.name(), precision.name(), isa.name());
            }
        }
    }
}

#[test]
fn every_family_with_gradient() {
    check(&Laplace, both());
    check(&LaplaceDipole, both());
    check(&LaplaceMixed, both());
    check(&Yukawa { kappa: 3.0 }, both());
    check(&Stokes { mu: 0.7 }, both());
    check(&StokesPressure { mu: 0.7 }, both());
    check(&Stresslet { mu: 0.7 }, both());
    check(&Gravity { g: 2.0, softening: 0.1 }, both());
    check(&Gravity { g: 2.0, softening: 0.0 }, both());
}

#[test]
fn hessian() {
    check(&Laplace, both() | Outputs::HESSIAN);
}

/// Two masses at one position: each feels the other mass, G m/ε, and not itself.
#[test]
fn coincident_softened_masses() {
    let family = Gravity { g: 2.0, softening: 0.5 };
    for precision in [Precision::F32, Precision::F64] {
        let at = Targets::Sources;
        let found = direct(&family, both(), &[0.3; 6], &[1.0, 3.0], at, precision, Isa::detect()).unwrap();
        assert_eq!(found, [-12.0, 0.0, 0.0, 0.0, -4.0, 0.0, 0.0, 0.0]);
    }
}

#[test]
fn tiles_join() {
    for n in [1023, 1024, 1025, 1026, 2049] {
        let points = uniform(n, 3);
        for family in [Gravity { g: 1.0, softening: 0.0 }, Gravity { g: 1.0, softening: 0.2 }] {
            let q = strengths::<Gravity>(&points);
            let expected = plain(&family, both(), &points, &q, None);
            let at = Targets::Sources;
            let found = direct(&family, both(), &points, &q, at, Precision::F64, Isa::detect()).unwrap();
            let d = by_component(&found, &expected, 4);
            assert!(d < 1e-13, "{n} {}: {d:e}", family.softening);
        }
    }
}

/// To the last bit, whichever targets share a pass and whether one of them is among the sources of a tile.
#[test]
fn subsets_are_rows_of_the_whole() {
    let points = CloudKind::FiftyCopies.points(4500, 1);
    let mut indices = vec![4499, 0, 700, 700, 3, 2048, 2047];
    indices.extend((2018..2101).chain((0..200).map(|i| i * 1237 % 4500)));
    for (softening, isa) in Isa::available().into_iter().flat_map(|isa| [(0.0, isa), (0.2, isa)]) {
        let family = Gravity { g: 1.0, softening };
        let q = strengths::<Gravity>(&points);
        let sums = |at| direct(&family, both(), &points, &q, at, Precision::F64, isa).unwrap();
        let (all, some) = (sums(Targets::Sources), sums(Targets::Subset(&indices)));
        for (row, &i) in some.chunks(4).zip(&indices) {
            assert_eq!(row, &all[4 * i..4 * i + 4], "source {i}, {}", isa.name());
        }
    }
}

#[test]
fn no_sources_or_no_targets() {
    let family = Stokes { mu: 1.0 };
    let sums = |sources: &[f64], q: &[f64], at| {
        direct(&family, both(), sources, q, at, Precision::F32, Isa::detect()).unwrap()
    };
    assert_eq!(sums(&[], &[], Targets::Points(&[1.0, 2.0, 3.0])), [0.0; 12]);
    assert!(sums(&[], &[], Targets::Sources).is_empty());
    assert!(sums(&[0.0; 3], &[1.0; 3], Targets::Points(&[])).is_empty());
    assert!(sums(&[0.0; 3], &[1.0; 3], Targets::Subset(&[])).is_empty());
    let wrong = direct(&family, both(), &[0.0; 3], &[1.0; 2], Targets::Sources, Precision::F64, Isa::detect());
    assert!(matches!(wrong, Err(Error::Shape { found: 2, expected: 3, .. })));
}

/// Compares f32 with f64, at the sources (without self terms) and at `targets`.
fn single_precision<F: Known>(family: F, sources: &[f64], targets: &[f64]) {
    let family = family;
    let q = strengths::<F>(sources);
    let sums = |at, precision| direct(&family, both(), sources, &q, at, precision, Isa::detect()).unwrap();
    for (place, at) in [("sources", Targets::Sources), ("points", Targets::Points(targets))] {
        let d = difference::<F>(&sums(at, Precision::F32), &sums(at, Precision::F64));
        assert!(d < 1e-4, "{:?} of {} sources at {place}: {d:e}", family, sources.len() / 3);
    }
}

/// Squares of these lengths leave the range of f32. The unit of length is the extent of the cloud, or the distance of
/// the targets if all sources lie at one point.
#[test]
fn huge_and_tiny_lengths_in_f32() {
    for h in [1e30, 1e-30] {
        let dilate = |points: Vec<f64>| -> Vec<f64> { points.iter().map(|x| x * h).collect() };
        let (cloud, targets) = (dilate(uniform(200, 1)), dilate(uniform(50, 2)));
        for sources in [&cloud, &dilate(vec![0.3; 6])] {
            single_precision(Laplace, sources, &targets);
            single_precision(LaplaceDipole, sources, &targets);
            single_precision(Yukawa { kappa: 2.0 / h }, sources, &targets);
        }
        single_precision(Gravity { g: 1.0, softening: 0.1 * h }, &cloud, &targets);
    }
}

#[test]
fn targets_far_beyond_the_sources_in_f32() {
    let far: Vec<f64> = uniform(50, 3).iter().map(|x| x * 1e20).collect();
    single_precision(Laplace, &uniform(200, 1), &far);
    single_precision(Yukawa { kappa: 2.0 }, &uniform(200, 1), &far);
}

/// Errors of f32 against f64 on every cloud, even with very close points.
#[test]
fn single_precision_on_every_cloud() {
    let family = Laplace;
    for kind in CloudKind::ALL {
        let points = kind.points(1000, 5);
        let q = strengths::<Laplace>(&points);
        let sums = |p| direct(&family, both(), &points, &q, Targets::Sources, p, Isa::detect()).unwrap();
        let d = difference::<Laplace>(&sums(Precision::F32), &sums(Precision::F64));
        assert!(d < 1e-5, "{}: {d:e}", kind.name());
    }
}

/// Cubes of 1e-14 leave the range of f32.
#[test]
fn sums_beyond_the_range_of_f32_are_made_in_f64() {
    let family = Laplace;
    let mut points = uniform(300, 5);
    points.extend([0.5, 0.5, 0.5, 0.5, 0.5, 0.5 + 1e-14]);
    let q = strengths::<Laplace>(&points);
    let sums = |p| direct(&family, both(), &points, &q, Targets::Sources, p, Isa::detect()).unwrap();
    let exact = sums(Precision::F64);
    let solved = solve(&family, geometry(&points, None, 20), &settings(6, Precision::F32), &q);
    for (name, found) in [("direct", sums(Precision::F32)), ("fast", solved)] {
        let d = difference::<Laplace>(&found, &exact);
        assert!(d < 1e-6, "{name}: {d:e}");
    }
}
