//! Batched stages against [`Pairwise`]: the same expansion, tree and lists with one operator call per edge and scalar
//! kernels, so that only rounding may differ.

use super::*;
use backend_cpu::pairwise::Pairwise;
use fmm_kernels::equivalent::{EquivalentExpansion, Lattice, Scalar};
use fmm_kernels::{Gravity, Laplace, LaplaceDipole, Stokes, Stresslet, Yukawa};
use fmm_traits::Kernels;

/// Potential and gradient, pair by pair.
pub fn pair_by_pair<T: Scalar>(
    family: &impl Family,
    lattice: impl Into<Lattice>,
    (tree, lists): &(Tree, Lists),
    strengths: &[f64],
) -> Vec<f64> {
    let kernels = Kernels::of(family, both()).unwrap();
    let sides: Vec<f64> = (0..tree.levels()).map(|l| tree.side_at(l)).collect();
    let expansion = EquivalentExpansion::<T>::new(&kernels, lattice, &sides).unwrap();
    let values = Pairwise::new(tree, lists, &expansion).unwrap().apply(strengths, &mut |_, _| true).unwrap();
    values.into_iter().map(|x| x * kernels.scale).collect()
}

/// Asserts agreement to `tolerance`.
fn agree<F: Known, T: Scalar>(
    family: &F,
    lattice: impl Into<Lattice>,
    sources: &[f64],
    targets: Option<&[f64]>,
    tolerance: f64,
    what: &str,
) {
    let lattice = lattice.into();
    let geometry = geometry(sources, targets, 15);
    let q = strengths::<F>(sources);
    let precision = if T::EPSILON < 1e-10 { Precision::F64 } else { Precision::F32 };
    let expected = pair_by_pair::<T>(family, lattice, &geometry, &q);
    let settings = settings(lattice.order, precision);
    let space = family.any().in_space(both()).unwrap();
    let (tree, lists) = geometry;
    let found = apply(&*space.solver(tree, lists, &settings, Expansion::Equivalent(lattice.fill)).unwrap(), &q);
    let d = difference::<F>(&found, &expected);
    assert!(d <= tolerance, "{} {what}, {lattice:?}, {}: {d:e}", family.name(), precision.name());
}

const CLOUDS: [CloudKind; 10] = [
    CloudKind::Uniform,
    CloudKind::Clustered,
    CloudKind::Ellipsoid,
    CloudKind::TwoClusters,
    CloudKind::Plane,
    CloudKind::Grid,
    CloudKind::Outlier,
    CloudKind::FiftyCopies,
    CloudKind::Coincident,
    CloudKind::Single,
];

fn clouds<F: Known>(family: F) {
    let family = family;
    for kind in CLOUDS {
        // The oracle converts surface points to the user's coordinates. Boxes of side 1e-9 at 0.6 keep few digits
        // there.
        let tolerance = if kind == CloudKind::TwoClusters { 1e-8 } else { 1e-11 };
        agree::<_, f64>(&family, 4, &kind.points(400, 3), None, tolerance, kind.name());
    }
    for kind in [CloudKind::Ellipsoid, CloudKind::Outlier, CloudKind::FiftyCopies] {
        agree::<_, f32>(&family, 4, &kind.points(400, 3), None, 1e-4, kind.name());
    }
    let (ellipsoid, plane) = (CloudKind::Ellipsoid.points(400, 1), CloudKind::Plane.points(300, 2));
    agree::<_, f64>(&family, 4, &ellipsoid, Some(&plane), 1e-11, "ellipsoid on a plane");
    agree::<_, f64>(&family, 4, &plane, Some(&ellipsoid), 1e-11, "plane on an ellipsoid");
    agree::<_, f64>(&family, 4, &[], Some(&plane), 0.0, "no sources");
    agree::<_, f64>(&family, 4, &plane, Some(&[]), 0.0, "no targets");
}

#[test]
fn laplace() {
    clouds(Laplace);
}

#[test]
fn several_components() {
    clouds(Stokes { mu: 0.7 });
}

#[test]
fn operators_of_every_level() {
    clouds(Yukawa { kappa: 3.0 });
}

#[test]
fn sources_unlike_densities() {
    clouds(LaplaceDipole);
}

#[test]
fn more_values_than_strengths_inside() {
    let family = Stresslet { mu: 0.7 };
    agree::<_, f64>(&family, 4, &CloudKind::Ellipsoid.points(300, 1), None, 1e-11, "ellipsoid");
}

/// Softened masses at one position act on each other but never on themselves.
#[test]
fn self_terms_are_skipped_by_index() {
    let family = Gravity { g: 2.0, softening: 0.01 };
    for kind in [CloudKind::Uniform, CloudKind::FiftyCopies, CloudKind::Coincident, CloudKind::Single] {
        agree::<_, f64>(&family, 4, &kind.points(300, 3), None, 1e-11, kind.name());
        agree::<_, f32>(&family, 4, &kind.points(300, 3), None, 1e-4, kind.name());
    }
}

#[test]
fn every_order() {
    for order in 3..=10 {
        let kind = if order < 6 { CloudKind::Uniform } else { CloudKind::Line };
        agree::<_, f64>(&Laplace, order, &kind.points(300, 3), None, 1e-11, kind.name());
        agree::<_, f32>(&Laplace, order, &kind.points(300, 3), None, 2e-4, kind.name());
    }
}

#[test]
fn densities_in_volumes() {
    for order in [3, 4, 5, 6] {
        let (points, volume) = (CloudKind::Ellipsoid.points(300, 3), Lattice::volume(order));
        agree::<_, f64>(&Laplace, volume, &points, None, 1e-10, "ellipsoid");
        agree::<_, f32>(&Laplace, volume, &points, None, 1e-3, "ellipsoid");
    }
    let (points, volume) = (CloudKind::Ellipsoid.points(200, 3), Lattice::volume(4));
    agree::<_, f64>(&Yukawa { kappa: 3.0 }, volume, &points, None, 1e-10, "ellipsoid");
    agree::<_, f64>(&LaplaceDipole, volume, &points, None, 1e-9, "ellipsoid");
    agree::<_, f64>(&Stokes { mu: 0.7 }, volume, &points, None, 1e-9, "ellipsoid");
}

/// An octree of points at z = 0 is a quadtree.
#[test]
fn kernels_of_the_plane() {
    let flat = |kind: CloudKind, n: usize, seed: u64| -> Vec<f64> {
        kind.points(n, seed).chunks(3).flat_map(|x| [x[0], x[1], 0.0]).collect()
    };
    for kind in CLOUDS {
        let tolerance = if kind == CloudKind::TwoClusters { 1e-7 } else { 1e-11 };
        for lattice in [4, 5].map(|p| Lattice::surface(p).in_plane()) {
            agree::<_, f64>(&Log, lattice, &flat(kind, 400, 3), None, tolerance, kind.name());
        }
    }
    for order in [3, 4, 5, 8] {
        let (lattice, points) = (Lattice::volume(order).in_plane(), flat(CloudKind::Ellipsoid, 400, 3));
        agree::<_, f64>(&Log, lattice, &points, None, 1e-10, "filled");
        agree::<_, f32>(&Log, Lattice::surface(order + 2).in_plane(), &points, None, 1e-3, "ellipsoid");
    }
    let (ellipsoid, uniform) = (flat(CloudKind::Ellipsoid, 400, 1), flat(CloudKind::Uniform, 300, 2));
    agree::<_, f64>(&Log, Lattice::surface(6).in_plane(), &ellipsoid, Some(&uniform), 1e-11, "apart");
    let (_, lists) = geometry(&flat(CloudKind::Clustered, 400, 3), None, 15);
    for (name, edges) in lists.kinds() {
        assert!(edges.len() > 10, "{name}: {}", edges.len());
    }
}

/// The clouds of the other tests use every stage.
#[test]
fn every_kind_of_edge_is_tested() {
    let (_, lists) = geometry(&CloudKind::Ellipsoid.points(400, 3), None, 15);
    for (name, edges) in lists.kinds() {
        assert!(edges.len() > 10, "{name}: {}", edges.len());
    }
}
