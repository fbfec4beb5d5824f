//! The pair sum by itself.

use super::direct::plain;
use super::*;
use backend_cpu::soa::{PAD, Soa};
use backend_cpu::sum::sum;
use fmm_kernels::{Gravity, Laplace, gravity::Plummer};
use fmm_traits::Real;
use fmm_traits::testkit::expansion::difference as by_component;

/// Rows x, y, z, q for `points`, in a block that holds NaN wherever nothing is written.
fn pack<T: Real>(block: &mut Soa<T>, points: &[f64], q: &[f64]) {
    block.reset(4, q.len());
    for a in 0..4 {
        let row = block.row_mut(a);
        row.fill(T::of(f64::NAN));
        for (i, to) in row[..q.len()].iter_mut().enumerate() {
            *to = T::of(if a < 3 { points[3 * i + a] } else { q[i] });
        }
    }
    block.pad();
}

fn check<K: Kernel, F: Family, T: Real>(family: &F, own: bool) {
    let (points, q) = (uniform(60, 1), normal_strengths(60, 1));
    let params: Vec<T> = family.parameters().into_iter().map(T::of).collect();
    let mut block = Soa::default();
    for n in 1..=40 {
        pack::<T>(&mut block, &points[..3 * n], &q[..n]);
        for m in 1..=9.min(if own { n } else { 9 }) {
            // The last m sources, or points that are none.
            let first = if own { n - m } else { 50 };
            let expected =
                plain(family, both(), &points[..3 * n], &q[..n], (!own).then_some(&points[150..150 + 3 * m]));
            let expected: Vec<T> =
                expected[expected.len() - 4 * m..].iter().map(|&x| T::of(x / family.scale())).collect();
            let xyz: [Vec<T>; 3] =
                std::array::from_fn(|a| (first..first + m).map(|i| T::of(points[3 * i + a])).collect());
            for isa in Isa::available() {
                let mut out = vec![T::of(1.0); 4 * m];
                let at = xyz.each_ref().map(Vec::as_slice);
                sum::<Gradient<K>, T>(isa, &params, at, &block, 0..n, own.then_some(first), &mut out);
                let found: Vec<T> = out.iter().map(|&x| x - T::of(1.0)).collect();
                let d = by_component(&found, &expected, 4);
                assert!(d < 3e3 * T::EPSILON, "{} {} n {n} m {m}: {d:e}", family.name(), isa.name());
            }
        }
    }
}

#[test]
fn any_number_of_sources_and_targets() {
    check::<Laplace, _, f64>(&WithGradient(Laplace), false);
    check::<Laplace, _, f32>(&WithGradient(Laplace), false);
    check::<Laplace, _, f64>(&WithGradient(Laplace), true);
    let softened = WithGradient(Gravity { g: 1.0, softening: 0.1 });
    check::<Plummer, _, f64>(&softened, false);
    check::<Plummer, _, f64>(&softened, true);
    check::<Plummer, _, f32>(&softened, true);
}

/// Blocks of one entry per source, a range that starts inside.
#[test]
fn a_range_of_sources() {
    let (points, q) = (uniform(100, 1), normal_strengths(100, 1));
    let mut block = Soa::<f64>::default();
    pack(&mut block, &points, &q);
    let at: [&[f64]; 3] = [&[0.5], &[0.5], &[0.5]];
    for isa in Isa::available() {
        let mut parts = [0.0; 4];
        for start in (0..100).step_by(PAD) {
            sum::<Gradient<Laplace>, f64>(isa, &[], at, &block, start..(start + PAD).min(100), None, &mut parts);
        }
        let expected = plain(&WithGradient(Laplace), both(), &points, &q, Some(&[0.5; 3]));
        let expected: Vec<f64> = expected.iter().map(|x| x / WithGradient(Laplace).scale()).collect();
        assert!(by_component(&parts, &expected, 4) < 1e-13, "{}", isa.name());
    }
}

/// f32 cannot tell 2²⁴ from its successor; the index of a skipped source can.
#[test]
fn a_source_beyond_the_integers_of_f32_is_skipped_alone() {
    let n = (1 << 24) + 64;
    let mut block = Soa::<f32>::default();
    block.reset(4, n);
    block.row_mut(3).iter_mut().skip(n - 64).for_each(|q| *q = 1.0);
    for isa in Isa::available() {
        for own in [n - 64, n - 63, n - 62, n - 1] {
            let mut out = [0.0; 4];
            let at: [&[f32]; 3] = [&[0.0], &[0.0], &[0.0]];
            sum::<Gradient<Plummer>, f32>(isa, &[0.5], at, &block, n - 64..n, Some(own), &mut out);
            assert_eq!(out, [2.0 * 63.0, 0.0, 0.0, 0.0], "{} {own}", isa.name());
        }
    }
}

/// Blocks are aligned, keep their rows apart and can shrink and grow.
#[test]
fn blocks() {
    let mut block = Soa::<f32>::default();
    for (rows, len) in [(4, 100), (7, 3), (4, 0), (3, 1000), (12, 17)] {
        block.reset(rows, len);
        assert_eq!((block.rows(), block.len()), (rows, len));
        (0..rows).for_each(|r| block.row_mut(r).fill(r as f32 + 1.0));
        block.pad();
        for r in 0..rows {
            let row = block.row(r);
            assert!(row.len() >= len && row.len().is_multiple_of(PAD) && !row.is_empty());
            assert_eq!(row.as_ptr() as usize % 64, 0);
            assert!(row[..len].iter().all(|&x| x == r as f32 + 1.0));
            let padding = if r < 3 && len > 0 { r as f32 + 1.0 } else { 0.0 };
            assert!(row[len..].iter().all(|&x| x == padding));
        }
    }
}
