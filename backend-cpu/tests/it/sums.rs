//! The pair sum alone.

use super::direct::plain;
use super::*;
use backend_cpu::soa::{PAD, Soa, Targets};
use backend_cpu::sum::sum;
use fmm_kernels::{Gravity, Laplace, gravity::Plummer};
use fmm_traits::Real;
use fmm_traits::testkit::expansion::difference as by_component;

/// Packs `points` and `q` into a block that holds NaN at all unused places.
fn pack<T: Real>(block: &mut Soa<T>, pieces: usize, points: &[f64], q: &[f64]) {
    block.reset(pieces, 1, q.len());
    (0..block.rows()).for_each(|r| block.row_mut(r).fill(T::of(f64::NAN)));
    for a in 0..3 {
        block.place(a, 0, points.chunks_exact(3).take(q.len()).map(|x| x[a]));
    }
    block.strength_mut(0).iter_mut().zip(q).for_each(|(to, q)| *to = T::of(*q));
    block.pad(1, std::iter::empty());
}

fn check<K: Kernel, F: Known, T: Real, const PIECES: usize>(family: &F, own: bool) {
    let (points, q) = (uniform(60, 1), normal_strengths(60, 1));
    let params: Vec<T> = family.parameters().into_iter().map(T::of).collect();
    let (mut block, mut places) = (Soa::default(), Soa::default());
    for n in 1..=40 {
        pack::<T>(&mut block, PIECES, &points[..3 * n], &q[..n]);
        for m in 1..=9.min(if own { n } else { 9 }) {
            // The targets are the last m sources, or separate points.
            let first = if own { n - m } else { 50 };
            let expected =
                plain(family, both(), &points[..3 * n], &q[..n], (!own).then_some(&points[150..150 + 3 * m]));
            let expected: Vec<T> =
                expected[expected.len() - 4 * m..].iter().map(|&x| T::of(x / family.scale())).collect();
            pack::<T>(&mut places, PIECES, &points[3 * first..], &q[..m]);
            for isa in Isa::available() {
                let mut out = vec![T::of(1.0); 4 * m];
                let at = places.targets(0..m);
                sum::<Gradient<K>, T, PIECES>(isa, &params, at, &block, 0..n, own.then_some(first), &mut out);
                let found: Vec<T> = out.iter().map(|&x| x - T::of(1.0)).collect();
                let d = by_component(&found, &expected, 4);
                assert!(d < 3e3 * T::EPSILON, "{} {} n {n} m {m}: {d:e}", family.name(), isa.name());
            }
        }
    }
}

#[test]
fn any_number_of_sources_and_targets() {
    check::<Laplace, _, f64, 1>(&Laplace, false);
    check::<Laplace, _, f32, 1>(&Laplace, false);
    check::<Laplace, _, f32, 2>(&Laplace, false);
    check::<Laplace, _, f64, 1>(&Laplace, true);
    let softened = Gravity { g: 1.0, softening: 0.1 };
    check::<Plummer, _, f64, 1>(&softened, false);
    check::<Plummer, _, f64, 1>(&softened, true);
    check::<Plummer, _, f32, 2>(&softened, true);
}

/// Blocks with one entry per source, and a range that starts inside a block.
#[test]
fn a_range_of_sources() {
    let (points, q) = (uniform(100, 1), normal_strengths(100, 1));
    let mut block = Soa::<f64>::default();
    pack(&mut block, 1, &points, &q);
    let at: Targets<f64> = [&[0.5], &[0.5], &[0.5], &[], &[], &[]];
    for isa in Isa::available() {
        let mut parts = [0.0; 4];
        for start in (0..100).step_by(PAD) {
            sum::<Gradient<Laplace>, f64, 1>(isa, &[], at, &block, start..(start + PAD).min(100), None, &mut parts);
        }
        let expected = plain(&Laplace, both(), &points, &q, Some(&[0.5; 3]));
        let expected: Vec<f64> = expected.iter().map(|x| x / Family::scale(&Laplace)).collect();
        assert!(by_component(&parts, &expected, 4) < 1e-13, "{}", isa.name());
    }
}

/// f32 cannot tell 2²⁴ from its successor. A source with such an index is still skipped alone.
#[test]
fn a_source_beyond_the_integers_of_f32_is_skipped_alone() {
    let n = (1 << 24) + 64;
    let mut block = Soa::<f32>::default();
    block.reset(1, 1, n);
    block.strength_mut(0).iter_mut().skip(n - 64).for_each(|q| *q = 1.0);
    for isa in Isa::available() {
        for own in [n - 64, n - 63, n - 62, n - 1] {
            let mut out = [0.0; 4];
            let at: Targets<f32> = [&[0.0], &[0.0], &[0.0], &[], &[], &[]];
            sum::<Gradient<Plummer>, f32, 1>(isa, &[0.5], at, &block, n - 64..n, Some(own), &mut out);
            assert_eq!(out, [2.0 * 63.0, 0.0, 0.0, 0.0], "{} {own}", isa.name());
        }
    }
}

/// Blocks are aligned, keep their rows apart and can shrink and grow.
#[test]
fn blocks() {
    let mut block = Soa::<f32>::default();
    for (pieces, strengths, len) in [(1, 1, 100), (2, 1, 3), (1, 1, 0), (1, 0, 1000), (2, 9, 17)] {
        block.reset(pieces, strengths, len);
        let rows = 3 * pieces + strengths;
        assert_eq!((block.rows(), block.pieces(), block.len()), (rows, pieces, len));
        (0..rows).for_each(|r| block.row_mut(r).fill(r as f32 + 1.0));
        block.pad(1, std::iter::empty());
        for r in 0..rows {
            let row = block.row(r);
            assert!(row.len() >= len && row.len().is_multiple_of(PAD) && !row.is_empty());
            assert_eq!(row.as_ptr() as usize % 64, 0);
            assert!(row[..len].iter().all(|&x| x == r as f32 + 1.0));
            let padding = if r < 3 * pieces && len > 0 { r as f32 + 1.0 } else { 0.0 };
            assert!(row[len..].iter().all(|&x| x == padding));
        }
    }
}

/// Two pieces hold 49 bits: the field of a point 10⁻⁹ away has five digits, where one piece has none.
#[test]
fn two_pieces_keep_the_digits_of_short_distances() {
    let x = [0.3, -0.2, 0.1];
    let y = [0.3 + 1e-9, -0.2 + 2e-9, 0.1 - 2e-9];
    let r = [x[0] - y[0], x[1] - y[1], x[2] - y[2]];
    let mut expected = [0.0; 4];
    Gradient::<Laplace>::eval(&[], &r, &[1.0], &mut expected);
    let expected = expected.map(|u| u as f32);
    let (mut source, mut target) = (Soa::<f32>::default(), Soa::<f32>::default());
    for isa in Isa::available() {
        let mut out = [[0.0; 4]; 2];
        for pieces in [1, 2] {
            pack(&mut source, pieces, &y, &[1.0]);
            pack(&mut target, pieces, &x, &[0.0]);
            let (at, out) = (target.targets(0..1), &mut out[pieces - 1]);
            match pieces {
                1 => sum::<Gradient<Laplace>, f32, 1>(isa, &[], at, &source, 0..1, None, out),
                _ => sum::<Gradient<Laplace>, f32, 2>(isa, &[], at, &source, 0..1, None, out),
            }
        }
        let [one, two] = out.map(|out| by_component(&out, &expected, 4));
        assert!(two < 2e-6 && (one >= 0.1 || one.is_nan()), "{}: {one:e}, {two:e}", isa.name());
    }
}
