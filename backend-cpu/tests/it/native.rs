//! The interpreter gives the sums of pairs evaluated one by one, and pair loops by the system's C compiler those of the
//! interpreter.

use backend_cpu::{Isa, Pairs, direct_batch};
use fmm_traits::testkit::clouds::CloudKind;
use fmm_traits::{Outputs, Precision, Targets, Traced};

/// Kernels that use every operation between them, and sums of products of every sign and length.
const KERNELS: [&str; 9] = [
    "value 1/r",
    "parameter k = 2\nvalue exp(-k*r)/r",
    "value erf(4*r)/r + ln(r + 1) + sin(3*r)*cos(5*r)",
    "parameter k = 3\nvalue bessel_k0(k*r) + 0.3*bessel_k1(k*r)",
    "value where(r < 0.3 and not (r <= 0.1), r^3, 2 - sqrt(r))",
    "value where(r <= 0.2 or r == 0.5, 1, 1/(1 + r^2))",
    "g = 1/r\nh = (x*q1 + y*q2 + z*q3)*g^3\nvalue g*q1 + h*x\nvalue g*q2 + h*y\nvalue g*q3 + h*z",
    "value x*q1 - y*q2 - z*q3\nvalue q1*x*y*z*x/r^5 - q2\nvalue -(x*y)*q3 - (y*q1 + z*q2 + x*q3)*r",
    "parameter c = 2\nvalue -(x*q1) - (y*q1)*c\nvalue z*q2 - x*q1 + y*q2 - x*y*q1\nvalue q1 - x*q2*y/c\nvalue q2 + q1*r*r",
];

/// ‖a − b‖₂ / ‖b‖₂.
fn difference(a: &[f64], b: &[f64]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied())
}

#[test]
fn the_interpreter_sums_pairs_one_by_one() {
    let points = CloudKind::Uniform.points(203, 5);
    let apart = CloudKind::Uniform.points(41, 6);
    for text in KERNELS {
        let kernel = Traced::parse(text).unwrap();
        for outputs in [Outputs::POTENTIAL, Outputs::POTENTIAL | Outputs::GRADIENT] {
            let kernels = kernel.kernels(outputs).unwrap();
            let (near, strengths) = (&kernels.near, kernels.near.strengths);
            let q = CloudKind::Uniform.points(68 * strengths, 1)[..203 * strengths].to_vec();
            let mut exact = Vec::new();
            for at in apart.chunks_exact(3) {
                let (mut sums, mut values) = (vec![0.0; near.values], vec![0.0; near.values]);
                for (y, q) in points.chunks_exact(3).zip(q.chunks_exact(strengths)) {
                    near.eval(&kernels.params, &[at[0] - y[0], at[1] - y[1], at[2] - y[2]], q, &mut values);
                    sums.iter_mut().zip(&values).for_each(|(sum, x)| *sum += x * kernels.scale);
                }
                exact.extend(sums);
            }
            for (isa, precision) in
                Isa::available().into_iter().flat_map(|isa| [Precision::F64, Precision::F32].map(|p| (isa, p)))
            {
                let pairs = Pairs::traced(&kernels);
                let targets = Targets::Points(&apart);
                let sums = direct_batch(&kernels, &pairs, &points, &[&q], targets, precision, isa).unwrap();
                let (d, bound) = (difference(&sums[0], &exact), if precision == Precision::F64 { 1e-13 } else { 3e-6 });
                assert!(d <= bound, "{text}, {} {precision:?}: {d:.1e}", isa.name());
            }
        }
    }
}

#[test]
fn loops_by_the_c_compiler_are_those_of_the_interpreter() {
    let points = CloudKind::Uniform.points(203, 5);
    // The first targets are sources.
    let apart: Vec<f64> = points[..30].iter().copied().chain(CloudKind::Uniform.points(41, 6)).collect();
    for text in KERNELS {
        let kernel = Traced::parse(text).unwrap();
        for outputs in [Outputs::POTENTIAL, Outputs::POTENTIAL | Outputs::GRADIENT] {
            let kernels = kernel.kernels(outputs).unwrap();
            let strengths = kernels.near.strengths;
            let sets: Vec<Vec<f64>> =
                (0..9).map(|set| CloudKind::Uniform.points(68 * strengths, set)[..203 * strengths].to_vec()).collect();
            let sets: Vec<&[f64]> = sets.iter().map(|set| &set[..]).collect();
            for (isa, precision) in
                Isa::available().into_iter().flat_map(|isa| [Precision::F64, Precision::F32].map(|p| (isa, p)))
            {
                for (targets, skip) in [(Targets::Sources, true), (Targets::Points(&apart), false)] {
                    for count in [1, 3, 9] {
                        let sums = |pairs: Pairs| {
                            let pairs = pairs.skipping_self(skip);
                            direct_batch(&kernels, &pairs, &points, &sets[..count], targets, precision, isa).unwrap()
                        };
                        let (native, interpreted) =
                            (sums(Pairs::native(&kernels).unwrap()), sums(Pairs::traced(&kernels)));
                        for (a, b) in native.iter().zip(&interpreted) {
                            let (d, bound) = (difference(a, b), if precision == Precision::F64 { 1e-13 } else { 3e-6 });
                            assert!(d <= bound, "{text}, {} {precision:?} {count}: {d:.1e}", isa.name());
                        }
                    }
                }
            }
        }
    }
}
