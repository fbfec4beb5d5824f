//! Near fields on the device of plans whose far fields are on the host, against those of the host.

use crate::Test;
use crate::far::difference;
use crate::nodes;
use backend_cpu::{Isa, OctreeSolver, Pairs};
use backend_cuda::{Device, NearOnDevice};
use fmm_kernels::equivalent::Fill;
use fmm_traits::testkit::clouds::CloudKind;
use fmm_traits::{Kernels, Lists, NearFields, Precision, Tree};
use fmm_tree::{BuildOptions, ListOptions};
use std::sync::Arc;

pub const TESTS: &[Test] = &[("near_alone::the_sums_are_those_of_the_cpu", agree)];

/// The tree of an ellipsoid, which has all lists, and its lists.
fn geometry(n: usize, targets: Option<&[f64]>, seed: u64) -> (Tree, Lists) {
    let options = BuildOptions { occupancy: 30.0, ..Default::default() };
    let tree = fmm_tree::build(&CloudKind::Ellipsoid.points(n, seed), targets, &options).unwrap();
    let lists = fmm_tree::uvwx(&tree, &ListOptions::default()).unwrap();
    (tree, lists)
}

/// A kernel whose sources have attributes, and do not act on themselves. Both precisions, sources as targets and other
/// targets, one set of strengths and several, and new points.
fn agree(device: &Device) {
    let n = 3000;
    let other = CloudKind::Uniform.points(500, 51);
    let attributes = [nodes::values(n, [0.02, 0.06], 53)];
    let (kernels, q) = (nodes::kernels(&["e"], &attributes, 2), nodes::strengths(n, &attributes));
    let kernels = Kernels { include_self: false, ..kernels };
    for (targets, precision, bound) in [
        (None, Precision::F64, 1e-13),
        (Some(&other[..]), Precision::F64, 1e-13),
        (None, Precision::F32, 3e-6),
        (Some(&other[..]), Precision::F32, 3e-6),
    ] {
        let plan = |near: Option<Arc<dyn NearFields>>| made(&kernels, precision, geometry(n, targets, 50), near);
        let (alone, mut shared) = (plan(None), plan(Some(Arc::new(NearOnDevice::new(device, precision)))));
        let m = alone.tree().targets.len();
        let check = |alone: &dyn OctreeSolver, shared: &dyn OctreeSolver| {
            let (mut u, mut v) = (vec![vec![0.0; 4 * m]; 2], vec![vec![0.0; 4 * m]; 2]);
            let twice: Vec<f64> = q.chunks(2).flat_map(|q| [-2.0 * q[0], q[1]]).collect();
            for (solver, out) in [(alone, &mut u), (shared, &mut v)] {
                let mut out: Vec<&mut [f64]> = out.iter_mut().map(|v| &mut v[..]).collect();
                solver.apply_batch(&[&q, &twice], &mut out, &mut |_, _| true).unwrap();
            }
            for (u, v) in u.iter().zip(&v) {
                let error = difference(v, u);
                assert!(error <= bound, "{m} targets, {precision:?}: {error:e}");
            }
        };
        check(&*alone, &*shared);
        let (tree, lists) = geometry(n, targets, 60);
        shared.set_tree(tree, lists).unwrap();
        check(&*made(&kernels, precision, geometry(n, targets, 60), None), &*shared);
    }
}

fn made(
    kernels: &Kernels,
    precision: Precision,
    (tree, lists): (Tree, Lists),
    near: Option<Arc<dyn NearFields>>,
) -> Box<dyn OctreeSolver> {
    let settings = backend_cpu::Settings { order: 5, precision, isa: Isa::detect(), cache: None, near };
    let pairs = Pairs::traced(kernels).skipping_self(true);
    backend_cpu::plan(kernels.clone(), &pairs, tree, lists, &settings, Fill::Volume).unwrap()
}
