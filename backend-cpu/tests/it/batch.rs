//! Several sets of strengths at once: each result has the bits of a separate evaluation.

use super::*;
use backend_cpu::soa::Soa;
use backend_cpu::sum::sum;
use fmm_kernels::{Gravity, Laplace, LaplaceDipole, gravity::Plummer};
use fmm_traits::Real;

/// Sets of strengths of different sizes.
fn sets<F: Known>(points: &[f64], count: usize) -> Vec<Vec<f64>> {
    let set = |k: usize| normal_strengths(points.len() / 3 * F::Source::STRENGTHS, k as u64).into_iter();
    (0..count).map(|k| set(k).map(|q| q * 0.01f64.powi(k as i32)).collect()).collect()
}

fn slices(sets: &[Vec<f64>]) -> Vec<&[f64]> {
    sets.iter().map(Vec::as_slice).collect()
}

/// Uniform points, two of which are so close that f32 does not hold their sum; and sets of strengths, one of which is 0
/// at these two points.
fn with_a_close_pair() -> (Vec<f64>, Vec<Vec<f64>>) {
    let mut points = uniform(300, 5);
    points.extend([0.5, 0.5, 0.5, 0.5, 0.5, 0.5 + 1e-14]);
    let mut sets = sets::<Laplace>(&points, 6);
    sets[2][300..].fill(0.0);
    (points, sets)
}

fn check_sums<K: Kernel, T: Real, const PIECES: usize>(params: &[T], own: Option<usize>) {
    let (n, m) = (45, 5);
    let (points, c) = (uniform(n, 1), K::STRENGTHS);
    let block = |sets: std::ops::Range<usize>| {
        let mut block = Soa::<T>::default();
        block.reset(PIECES, sets.len() * c, n);
        (0..3).for_each(|a| block.place(a, 0, points.chunks_exact(3).map(|x| x[a])));
        for (row, set) in sets.flat_map(|set| (0..c).map(move |k| (10 * set + k) as u64)).enumerate() {
            let q = normal_strengths(n, set);
            block.strength_mut(row).iter_mut().zip(q).for_each(|(to, q)| *to = T::of(q));
        }
        block.pad(1, std::iter::empty());
        block
    };
    let sums = |isa: Isa, sets: std::ops::Range<usize>| {
        let mut out = vec![T::of(1.0); sets.len() * m * K::VALUES];
        let block = block(sets);
        sum::<K, T, PIECES>(isa, params, block.targets(7..7 + m), &block, 0..n, own, &mut out);
        out
    };
    for isa in Isa::available() {
        for count in 1..=9 {
            let alone: Vec<T> = (0..count).flat_map(|set| sums(isa, set..set + 1)).collect();
            assert!(sums(isa, 0..count) == alone, "{} {} of {count} sets on {}", K::NAME, T::NAME, isa.name());
        }
    }
}

#[test]
fn pair_sums() {
    check_sums::<Laplace, f64, 1>(&[], None);
    check_sums::<Laplace, f32, 1>(&[], None);
    check_sums::<Gradient<Laplace>, f64, 1>(&[], None);
    check_sums::<Gradient<Laplace>, f32, 2>(&[], None);
    check_sums::<Gradient<Plummer>, f64, 1>(&[0.1], Some(7));
    check_sums::<Gradient<Plummer>, f32, 2>(&[0.1], Some(7));
}

fn check_direct<F: Known>(family: F, points: &[f64], sets: &[Vec<f64>]) {
    let (family, isa) = (family, Isa::detect());
    let others = uniform(70, 2);
    for at in [Targets::Sources, Targets::Points(&others)] {
        for precision in [Precision::F64, Precision::F32] {
            let batch = direct_batch(&family, both(), points, &slices(sets), at, precision, isa).unwrap();
            assert_eq!(batch.len(), sets.len());
            for (found, set) in batch.iter().zip(sets) {
                let alone = direct(&family, both(), points, set, at, precision, isa).unwrap();
                assert!(*found == alone, "{:?} {}", family, precision.name());
            }
        }
    }
}

#[test]
fn direct_sums() {
    let points = CloudKind::FiftyCopies.points(330, 1);
    check_direct(Laplace, &points, &sets::<Laplace>(&points, 9));
    check_direct(LaplaceDipole, &points, &sets::<LaplaceDipole>(&points, 3));
    check_direct(Gravity { g: 2.0, softening: 0.1 }, &points, &sets::<Gravity>(&points, 6));
    let (points, sets) = with_a_close_pair();
    check_direct(Laplace, &points, &sets);
    let isa = Isa::detect();
    let sums = |sets: &[&[f64]]| direct_batch(&Laplace, both(), &points, sets, Targets::Sources, Precision::F64, isa);
    assert!(sums(&[]).unwrap().is_empty());
    assert!(matches!(sums(&[&sets[0], &sets[0][1..]]), Err(Error::Shape { found: 301, expected: 302, .. })));
}

fn check_plan<F: Known>(family: F, points: &[f64], targets: Option<&[f64]>, sets: &[Vec<f64>]) {
    let family = family;
    for precision in [Precision::F64, Precision::F32] {
        let (tree, lists) = geometry(points, targets, 20);
        let solver = plan(&family, both(), tree, lists, &settings(4, precision)).unwrap();
        for count in [sets.len(), 2, 1] {
            let mut found = vec![vec![f64::NAN; solver.tree().targets.len() * solver.values()]; count];
            let mut out: Vec<&mut [f64]> = found.iter_mut().map(|x| &mut x[..]).collect();
            solver.apply_batch(&slices(&sets[..count]), &mut out, &mut |_, _| true).unwrap();
            for (found, set) in found.iter().zip(sets) {
                assert!(*found == apply(&*solver, set), "{:?} {} {count}", family, precision.name());
            }
        }
        let mut short = [0.0; 3];
        let wrong = solver.apply_batch(&slices(sets), &mut [&mut short], &mut |_, _| true);
        assert!(matches!(wrong, Err(Error::Shape { array: "out", .. })));
    }
}

#[test]
fn plans() {
    let (points, targets) = (CloudKind::Clustered.points(1500, 1), CloudKind::Ellipsoid.points(900, 2));
    check_plan(Laplace, &points, None, &sets::<Laplace>(&points, 6));
    check_plan(Laplace, &points, Some(&targets), &sets::<Laplace>(&points, 5));
    check_plan(LaplaceDipole, &points, Some(&targets), &sets::<LaplaceDipole>(&points, 4));
    check_plan(Gravity { g: 2.0, softening: 1e-3 }, &points, None, &sets::<Gravity>(&points, 3));
    let (points, sets) = with_a_close_pair();
    check_plan(Laplace, &points, None, &sets);
}
