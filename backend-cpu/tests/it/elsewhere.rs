//! A near field that another processor sums.

use crate::{Known, apply, both, geometry, settings, strengths, uniform};
use backend_cpu::{OctreeSolver, Settings};
use fmm_families::Expansion;
use fmm_kernels::equivalent::Fill;
use fmm_kernels::spherical::SphericalOptions;
use fmm_kernels::{Gravity, Laplace, Stokes};
use fmm_traits::{Error, Kernels, Lists, NearField, NearFields, Points, Precision, Stage, Tree};
use std::fmt;
use std::sync::Arc;

type Make = dyn Fn(Tree, Lists) -> Box<dyn OctreeSolver> + Send + Sync;

/// Sums near fields by a plan that has no far field. Without one, fails.
#[derive(Clone)]
struct Other(Option<Arc<Make>>);

impl fmt::Debug for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "another processor")
    }
}

impl NearFields for Other {
    fn place(&self, kernels: &Kernels, tree: &Tree, lists: &Lists) -> Result<Arc<dyn NearField>, Error> {
        let in_tree_order =
            |points: &Points| Arc::new(Points { order: (0..points.len() as u32).collect(), ..points.clone() });
        let sources = in_tree_order(&tree.sources);
        let targets = if tree.same_points() { sources.clone() } else { in_tree_order(&tree.targets) };
        let near = Lists { p2p: lists.p2p.clone(), ..Lists::none(tree.len()) };
        let solver = self.0.as_ref().map(|make| make(Tree { sources, targets, ..tree.clone() }, near));
        Ok(Arc::new(OtherPlaced { solver, scale: kernels.scale }))
    }
}

struct OtherPlaced {
    solver: Option<Box<dyn OctreeSolver>>,
    scale: f64,
}

impl NearField for OtherPlaced {
    fn sums(&self, strengths: &[f64]) -> Result<Vec<f64>, Error> {
        match &self.solver {
            Some(solver) => Ok(apply(&**solver, strengths).into_iter().map(|x| x / self.scale).collect()),
            None => Err(Error::Unsupported { operation: "a near field", reason: "of this test".to_string() }),
        }
    }
}

/// Largest difference in units of the largest number.
fn difference(found: &[f64], expected: &[f64]) -> f64 {
    let largest = expected.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    found.iter().zip(expected).fold(0.0, |m, (a, b)| f64::max(m, (a - b).abs())) / largest
}

fn same_sums<F: Known>(family: &F, expansion: Expansion, targets: Option<&[f64]>, precision: Precision, bound: f64) {
    let (points, alone) = (uniform(3000, 1), settings(5, precision));
    let make = {
        let (family, settings) = (family.clone(), alone.clone());
        move |tree, lists| family.any().in_space(both()).unwrap().solver(tree, lists, &settings, expansion).unwrap()
    };
    let shared = Settings { near: Some(Arc::new(Other(Some(Arc::new(make.clone()))))), ..alone };
    let make_shared =
        |tree, lists| family.any().in_space(both()).unwrap().solver(tree, lists, &shared, expansion).unwrap();
    let (tree, lists) = geometry(&points, targets, 40);
    let (expected, mut found) = (make(tree.clone(), lists.clone()), make_shared(tree, lists));
    let q = strengths::<F>(&points);
    assert!(difference(&apply(&*found, &q), &apply(&*expected, &q)) <= bound);
    // Several sets, and new points.
    let sets = [1.0, -2.0, 0.5].map(|factor| q.iter().map(|q| factor * q).collect::<Vec<f64>>());
    let sets = sets.each_ref().map(|q| &q[..]);
    let mut out = [vec![], vec![], vec![]];
    out.iter_mut().for_each(|out| out.resize(expected.tree().targets.len() * expected.values(), 0.0));
    found.apply_batch(&sets, &mut out.each_mut().map(|out| &mut out[..]), &mut |_, _| true).unwrap();
    for (q, out) in sets.iter().zip(&out) {
        assert!(difference(out, &apply(&*expected, q)) <= bound);
    }
    let (tree, lists) = geometry(&uniform(3000, 2), targets, 40);
    let expected = make(tree.clone(), lists.clone());
    found.set_tree(tree, lists).unwrap();
    assert!(difference(&apply(&*found, &q), &apply(&*expected, &q)) <= bound);
}

#[test]
fn the_sums_are_those_of_one_processor() {
    let (equivalent, spherical) = (Expansion::Equivalent(Fill::Surface), SphericalOptions::default());
    let targets = uniform(500, 7);
    same_sums(&Laplace, equivalent, None, Precision::F64, 1e-14);
    same_sums(&Laplace, equivalent, Some(&targets), Precision::F64, 1e-14);
    same_sums(&Laplace, equivalent, None, Precision::F32, 1e-6);
    same_sums(&Stokes { mu: 2.0 }, equivalent, None, Precision::F64, 1e-14);
    same_sums(&Gravity { g: 1.0, softening: 0.1 }, equivalent, None, Precision::F64, 1e-14);
    same_sums(&Laplace, Expansion::Spherical(spherical), None, Precision::F64, 1e-14);
    same_sums(&Laplace, Expansion::Spherical(spherical), Some(&targets), Precision::F32, 1e-6);
}

#[test]
fn its_error_and_a_cancellation_end_the_evaluation() {
    let (points, alone) = (uniform(2000, 1), settings(4, Precision::F64));
    let q = strengths::<Laplace>(&points);
    for expansion in [Expansion::Equivalent(Fill::Surface), Expansion::Spherical(SphericalOptions::default())] {
        let (tree, lists) = geometry(&points, None, 40);
        let shared = Settings { near: Some(Arc::new(Other(None))), ..alone.clone() };
        let solver = Laplace.any().in_space(both()).unwrap().solver(tree, lists, &shared, expansion).unwrap();
        let mut out = vec![0.0; 8000];
        let failed = solver.apply(&q, &mut out, &mut |_, _| true);
        assert!(matches!(failed, Err(Error::Unsupported { operation: "a near field", .. })), "{failed:?}");
        let cancelled = solver.apply(&q, &mut out, &mut |stage, _| stage != Stage::L2l);
        assert!(matches!(cancelled, Err(Error::Cancelled { stage: "l2l" })), "{cancelled:?}");
    }
}
