//! Direct sums against plain loops on the host in f64: every kernel, every output, both precisions.

use crate::{Test, direct};
use backend_cuda::{Device, Direct, Shape, StrengthSets};
use fmm_kernels::{Gravity, Laplace, LaplaceDipole, LaplaceMixed, Stokes, StokesPressure, Stresslet, Yukawa};
use fmm_traits::lane::dot;
use fmm_traits::testkit::clouds::{CloudKind, normal_strengths};
use fmm_traits::{Error, Family, Kernel, Kernels, Lane, OutputColumns, Outputs, Real, Targets, Visitor};

pub const TESTS: &[Test] = &[
    ("direct::every_kernel_and_output_agrees_with_the_host", kernels),
    ("direct::every_cloud_agrees_with_the_host", clouds),
    ("direct::a_kernel_of_the_user_agrees_with_the_host", own_kernel),
    ("direct::a_kernel_of_the_plane_agrees_with_the_host", of_the_plane),
    ("direct::points_that_coincide_contribute_nothing", coincident),
    ("direct::sizes_around_blocks_and_tiles", sizes),
    ("direct::ten_runs_give_the_same_bits", repeatable),
    ("direct::any_shape_gives_the_same_sum", shapes),
    ("direct::several_sets_have_the_bits_of_one", sets),
    ("direct::sets_on_the_device_have_the_bits_of_sets_on_the_host", there),
];

fn difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let e = norm(&mut a.iter().zip(b).map(|(a, b)| a - b));
    let size = norm(&mut b.iter().copied());
    if e == 0.0 { 0.0 } else { e / size }
}

/// The sums by two loops: target i skips own\[i\], and a zero distance is the kernel's affair.
struct Host<'a> {
    params: Vec<f64>,
    scale: f64,
    sources: &'a [f64],
    strengths: &'a [f64],
    targets: &'a [([f64; 3], usize)],
}
impl Visitor for Host<'_> {
    type Output = (Vec<f64>, usize, Vec<OutputColumns>);
    fn visit<S: Kernel, E: Kernel>(self, columns: Vec<OutputColumns>) -> Self::Output {
        let (mut out, mut u) = (vec![0.0; self.targets.len() * S::VALUES], vec![0.0; S::VALUES]);
        for (row, (x, own)) in out.chunks_mut(S::VALUES).zip(self.targets) {
            for (j, (y, q)) in self.sources.chunks(3).zip(self.strengths.chunks(S::STRENGTHS)).enumerate() {
                if j != *own {
                    let r = [x[0] - y[0], x[1] - y[1], x[2] - y[2]];
                    S::eval(&self.params, &r[..S::DIM], q, &mut u);
                    row.iter_mut().zip(&u).for_each(|(sum, u)| *sum += self.scale * u);
                }
            }
        }
        (out, S::VALUES, columns)
    }
}

/// Largest relative difference, over the outputs, between the device in `T` and the host in f64.
fn compare<T: Real, F: Family>(
    device: &Device,
    family: &F,
    outputs: Outputs,
    sources: &[f64],
    strengths: &[f64],
    targets: Targets,
) -> f64 {
    let (u, columns) = direct::<T, F>(device, family, outputs, sources, strengths, targets).unwrap();
    let at = |p: &[f64]| [p[0], p[1], p[2]];
    let there: Vec<([f64; 3], usize)> = match targets {
        Targets::Sources => sources.chunks(3).map(at).zip(0..).collect(),
        Targets::Subset(indices) => indices.iter().map(|&i| (at(&sources[3 * i..]), i)).collect(),
        Targets::Points(p) => p.chunks(3).map(|p| (at(p), usize::MAX)).collect(),
    };
    let host = Host { params: family.parameters(), scale: family.scale(), sources, strengths, targets: &there };
    let (v, stride, expected) = family.visit(outputs, host).unwrap();
    assert_eq!(columns, expected);
    columns.iter().fold(0.0, |worst: f64, output| {
        let pick = |x: &[f64]| -> Vec<f64> {
            x.chunks(stride).flat_map(|row| output.columns.iter().map(|&c| row[c])).collect()
        };
        worst.max(difference(&pick(&u), &pick(&v)))
    })
}

fn strengths_of<F: Family>(_: &F, n: usize) -> Vec<f64> {
    normal_strengths(n * F::Source::STRENGTHS, 7)
}

/// What rounding allows: sums of 256 terms in `T`, these in f64, and derivatives of close pairs.
fn bound<T: Real>() -> f64 {
    if T::NAME == "f32" { 2e-5 } else { 2e-14 }
}

fn family<F: Family>(device: &Device, family: F) {
    let sources = CloudKind::Uniform.points(1000, 1);
    let targets = CloudKind::Uniform.points(300, 2);
    let q = strengths_of(&family, 1000);
    for outputs in [Outputs::POTENTIAL, Outputs::GRADIENT, Outputs::HESSIAN] {
        for outputs in [outputs, outputs | Outputs::POTENTIAL, outputs | Outputs::PRESSURE] {
            if !family.outputs().contains(outputs) {
                continue;
            }
            for at in [Targets::Sources, Targets::Subset(&[3, 999, 0, 3]), Targets::Points(&targets)] {
                let names = outputs.names().join("+");
                let single = compare::<f32, F>(device, &family, outputs, &sources, &q, at);
                assert!(single <= bound::<f32>(), "{} {names} f32: {single:e}", family.name());
                let double = compare::<f64, F>(device, &family, outputs, &sources, &q, at);
                assert!(double <= bound::<f64>(), "{} {names} f64: {double:e}", family.name());
            }
        }
    }
}

fn kernels(device: &Device) {
    family(device, Laplace);
    family(device, LaplaceDipole);
    family(device, LaplaceMixed);
    family(device, Yukawa { kappa: 3.0 });
    family(device, Gravity { g: 1.0, softening: 0.1 });
    family(device, Gravity { g: 6.7, softening: 0.0 });
    family(device, Stokes { mu: 0.7 });
    family(device, StokesPressure { mu: 0.7 });
    family(device, Stresslet { mu: 0.7 });
}

fn clouds(device: &Device) {
    for kind in CloudKind::ALL {
        for n in [0, 1, 700] {
            let p = kind.points(n, 3);
            let q = normal_strengths(p.len() / 3, 3);
            let e = compare::<f64, _>(device, &Laplace, Outputs::POTENTIAL, &p, &q, Targets::Sources);
            assert!(e <= 1e-13, "{} {n} f64: {e:e}", kind.name());
            let e = compare::<f32, _>(device, &Laplace, Outputs::POTENTIAL, &p, &q, Targets::Sources);
            // Coordinates are rounded to f32 relative to the extent, so close pairs lose digits.
            let rough = [CloudKind::TwoClusters, CloudKind::Outlier, CloudKind::Clustered].contains(&kind);
            assert!(rough || e <= 1e-3, "{} {n} f32: {e:e}", kind.name());
        }
    }
}

/// Uses an exponential, a branch and a parameter; finite at r = 0, where the root must be 0.
#[derive(Clone, Debug)]
struct Own(f64);
impl Kernel for Own {
    const NAME: &'static str = "own";
    const STRENGTHS: usize = 2;
    const SINGULAR: bool = false;
    #[inline(always)]
    fn eval<V: Lane>(p: &[V], r: &[V], q: &[V], u: &mut [V]) {
        let r2 = dot(r, r);
        let near = r2.lt(V::splat(0.1));
        u[0] = V::select(near, q[0] * (-(p[0] * r2.rsqrt())).exp(), q[1] / (V::splat(1.0) + r2.sqrt()));
    }
    fn value_degree(_: usize) -> i32 {
        0
    }
    fn dilated(params: &[f64], h: f64) -> Option<Vec<f64>> {
        // Not homogeneous, and the branch does not scale: only used where the unit of length is 1.
        Some(params.iter().map(|p| p / h).collect())
    }
    fn parameters(&self) -> Vec<f64> {
        vec![self.0]
    }
}

fn own_kernel(device: &Device) {
    let mut sources = CloudKind::Uniform.points(900, 4);
    sources.copy_within(0..30, 300);
    let q = normal_strengths(1800, 4);
    for at in [Targets::Sources, Targets::Points(&sources[..600])] {
        let e = compare::<f64, _>(device, &Own(0.02), Outputs::POTENTIAL, &sources, &q, at);
        assert!(e <= 1e-13, "{e:e}");
        let e = compare::<f64, _>(device, &Own(0.02), Outputs::GRADIENT, &sources[..300], &q[..200], at);
        assert!(e <= 1e-12, "{e:e}");
    }
}

/// A logarithm and a screened kernel of the plane: of points in space it sees x and y.
#[derive(Clone, Debug)]
struct Flat;
impl Kernel for Flat {
    const NAME: &'static str = "flat";
    const DIM: usize = 2;
    const STRENGTHS: usize = 2;
    #[inline(always)]
    fn eval<V: Lane>(_: &[V], r: &[V], q: &[V], u: &mut [V]) {
        let r2 = dot(r, r);
        let value = q[0] * r2.ln() + q[1] * r2.sqrt().bessel_k0();
        u[0] = V::select(r2.eq(V::splat(0.0)), V::splat(0.0), value);
    }
    fn value_degree(_: usize) -> i32 {
        0
    }
}

fn of_the_plane(device: &Device) {
    let (sources, q) = (CloudKind::Uniform.points(700, 4), normal_strengths(1400, 4));
    let targets = CloudKind::Uniform.points(200, 5);
    for outputs in [Outputs::POTENTIAL, Outputs::GRADIENT, Outputs::HESSIAN] {
        for at in [Targets::Sources, Targets::Points(&targets)] {
            let e = compare::<f64, _>(device, &Flat, outputs, &sources, &q, at);
            assert!(e <= 1e-12, "{outputs:?}: {e:e}");
        }
    }
}

fn coincident(device: &Device) {
    let p = CloudKind::FiftyCopies.points(1000, 5);
    let q = normal_strengths(1000, 5);
    for outputs in [Outputs::POTENTIAL, Outputs::GRADIENT, Outputs::HESSIAN] {
        for at in [Targets::Sources, Targets::Points(&p)] {
            let e = compare::<f64, _>(device, &Laplace, outputs, &p, &q, at);
            assert!(e <= 1e-13, "{e:e}");
            let e = compare::<f32, _>(device, &Laplace, outputs, &p, &q, at);
            assert!(e <= 1e-4, "{e:e}");
        }
    }
    let all = CloudKind::Coincident.points(600, 5);
    let at = Targets::Sources;
    let (u, _) = direct::<f32, _>(device, &Laplace, Outputs::GRADIENT, &all, &q[..600], at).unwrap();
    assert!(u.iter().all(|&x| x == 0.0));
    // Not singular: K(0) q of all others.
    let softened = Gravity { g: 1.0, softening: 0.5 };
    let e = compare::<f64, _>(device, &softened, Outputs::POTENTIAL, &all, &q[..600], at);
    assert!(e <= 1e-13, "{e:e}");
    // Closer than the smallest normal number of the square: infinite in the short form only.
    let close = [0.0, 0.0, 0.0, 1e-160, 0.0, 0.0, 1.0, 0.0, 0.0];
    let e = compare::<f64, _>(device, &Laplace, Outputs::POTENTIAL, &close, &[1.0, -2.0, 3.0], at);
    assert!(e <= 1e-13, "{e:e}");
}

fn sizes(device: &Device) {
    for (n, m) in [(1, 1), (255, 127), (256, 128), (257, 513), (5000, 3), (3, 5000)] {
        let sources = CloudKind::Uniform.points(n, 6);
        let targets = CloudKind::Uniform.points(m, 7);
        let q = normal_strengths(n, 6);
        let e = compare::<f64, _>(device, &Laplace, Outputs::GRADIENT, &sources, &q, Targets::Points(&targets));
        assert!(e <= 1e-13, "{n} {m}: {e:e}");
    }
    let none = compare::<f64, _>(device, &Laplace, Outputs::POTENTIAL, &[], &[], Targets::Points(&[1.0; 3]));
    assert_eq!(none, 0.0);
}

fn repeatable(device: &Device) {
    let sources = CloudKind::Clustered.points(20_000, 8);
    let q = normal_strengths(20_000, 8);
    let mut sum = Direct::<f32>::new(
        device,
        &Kernels::of(&Laplace, Outputs::GRADIENT).unwrap(),
        &sources,
        Targets::Sources,
        None,
    )
    .unwrap();
    let first = sum.apply(&q).unwrap();
    for _ in 0..9 {
        assert!(sum.apply(&q).unwrap().iter().zip(&first).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}

fn shapes(device: &Device) {
    let sources = CloudKind::Uniform.points(3000, 9);
    let q = normal_strengths(3000, 9);
    let sum = |shape| {
        let at = Targets::Sources;
        Direct::<f64>::new(device, &Kernels::of(&Laplace, Outputs::POTENTIAL).unwrap(), &sources, at, shape)
            .unwrap()
            .apply(&q)
            .unwrap()
    };
    let tuned = sum(None);
    for (block, targets, tile, unroll) in [(64, 1, 128, 1), (128, 3, 256, 4), (256, 4, 512, 8)] {
        let e = difference(&sum(Some(Shape { block, targets, tile, unroll })), &tuned);
        assert!(e <= 1e-13, "{block} {targets} {tile} {unroll}: {e:e}");
    }
}

/// Seven sets of 3 MB, of which five are sent together; two sets of 18 MB, each too large to be sent with another; no set.
fn sets(device: &Device) {
    for (n, count) in [(400_000, 7), (2_300_000, 2), (100, 0)] {
        let sources = CloudKind::Uniform.points(n, 10);
        let targets = Targets::Subset(&[0, 99, 50]);
        let sets: Vec<Vec<f64>> = (0..count).map(|k| normal_strengths(n, k)).collect();
        let kernels = Kernels::of(&Laplace, Outputs::GRADIENT).unwrap();
        let sum = Direct::<f64>::new(device, &kernels, &sources, targets, None).unwrap().solver();
        let length = 3 * sum.values();
        let mut rows = vec![vec![f64::NAN; length]; sets.len()];
        let given: Vec<&[f64]> = sets.iter().map(|set| &set[..]).collect();
        let mut out: Vec<&mut [f64]> = rows.iter_mut().map(|rows| &mut rows[..]).collect();
        sum.apply_batch(&given, &mut out, &mut |_, _| true).unwrap();
        for (k, rows) in rows.iter().enumerate() {
            let mut one = vec![0.0; length];
            sum.apply(given[k], &mut one, &mut |_, _| true).unwrap();
            assert_eq!(*rows, one, "set {k} of {count}");
        }
    }
}

/// Sums of sets that are on the device, in both precisions; the copy has the numbers of the host.
fn there(device: &Device) {
    let (sources, points) = (CloudKind::Uniform.points(5000, 3), CloudKind::Plummer.points(70, 4));
    let kernels = Kernels::of(&Stokes { mu: 1.3 }, Outputs::POTENTIAL).unwrap();
    let sets: Vec<Vec<f64>> = (0..4).map(|k| normal_strengths(3 * 5000, k)).collect();
    let given: Vec<&[f64]> = sets.iter().map(|set| &set[..]).collect();
    let sent = StrengthSets::new(device, &given).unwrap();
    assert_eq!(sent.download().unwrap(), sets);
    fn check<T: Real>(mut sum: Direct<T>, sent: &StrengthSets, sets: &[Vec<f64>]) {
        let expected: Vec<Vec<f64>> = sets.iter().map(|set| sum.apply(set).unwrap()).collect();
        assert_eq!(sum.sums(sent).unwrap(), expected);
    }
    for targets in [Targets::Sources, Targets::Points(&points), Targets::Points(&[])] {
        check(Direct::<f64>::new(device, &kernels, &sources, targets, None).unwrap(), &sent, &sets);
        check(Direct::<f32>::new(device, &kernels, &sources, targets, None).unwrap(), &sent, &sets);
    }
    let mut sum = Direct::<f64>::new(device, &kernels, &sources[3..], Targets::Sources, None).unwrap();
    assert!(matches!(sum.sums(&sent), Err(Error::Shape { found: 15_000, expected: 14_997, .. })));
    assert!(matches!(StrengthSets::new(device, &[given[0], &given[1][1..]]), Err(Error::Shape { .. })));
    let none = StrengthSets::new(device, &[]).unwrap();
    assert_eq!((none.sets(), sum.sums(&none).unwrap().len()), (0, 0));
}
