//! Leaves whose edges are cut into parts, which different blocks sum.

use crate::Test;
use crate::far::{ten_runs_give_the_same_bits, tree_of};
use crate::nodes;
use backend_cuda::{Acceptance, Device, DeviceScalar, DeviceTree, Plan, SphericalSettings, treecode, uvwx};
use fmm_kernels::Laplace;
use fmm_kernels::equivalent::Fill;
use fmm_kernels::spherical::{self, Truncation};
use fmm_traits::testkit::clouds::{CloudKind, normal_strengths};
use fmm_traits::{Outputs, Real};
use fmm_tree::{ListOptions, TreecodeOptions};

pub const TESTS: &[Test] = &[("tasks::parts_of_leaves_add_up", parts_add_up)];

const N: usize = 1500;

/// Compares the sums of a plan with those in parts of three edges, at each target, with P2P beside the far field and behind
/// it, and in pieces.
fn check<T: DeviceScalar, R: Real>(mut plan: Plan<T, R>, q: &[f64], bound: f64, what: &str) {
    let whole = plan.apply(q, &mut |_, _| true).unwrap().0;
    plan.set_part(3).unwrap();
    let width = plan.values();
    // The order of P2P and the far field, and so the last bits, depend on whether P2P runs beside it.
    let mut bits: [Option<Vec<f64>>; 2] = [None, None];
    for (beside, most) in [(true, None), (false, None), (true, Some(whole.len() / width / 3 + 60))] {
        plan.set_beside(Some(beside));
        if let Some(most) = most {
            plan.set_piece(most).unwrap();
            assert!(plan.pieces() > 1, "{what}");
        }
        // The third run of a small plan replays the recorded second one.
        for _ in 0..3 {
            let parts = plan.apply(q, &mut |_, _| true).unwrap().0;
            for column in 0..width {
                let at = |u: &[f64], i: usize| u[i * width + column];
                let largest = (0..whole.len() / width).map(|i| at(&whole, i).abs()).fold(0.0, f64::max);
                let off = |i: usize| (at(&parts, i) - at(&whole, i)).abs() / largest;
                let error = (0..whole.len() / width).map(off).fold(0.0, f64::max);
                assert!(error <= bound, "{what}, beside: {beside}, column {column}: {error:e}");
            }
            let first = bits[usize::from(beside)].get_or_insert_with(|| parts.clone());
            assert!(*first == parts, "{what}: other bits");
        }
    }
    assert!(bits.iter().flatten().all(|parts| *parts != whole), "{what}: there was one part");
    plan.set_piece(whole.len() / width).unwrap();
    ten_runs_give_the_same_bits(&mut plan, q);
}

/// Trees with all lists, targets of their own, second derivatives, harmonics, treecodes, and several far fields.
fn parts_add_up(device: &Device) {
    let (s, t) = (CloudKind::Ellipsoid.points(N, 81), CloudKind::Uniform.points(N / 2, 82));
    let tree = |other: bool| tree_of(device, &s, other.then_some(&t[..]), 12);
    let lists = |tree: &DeviceTree| uvwx(tree, &ListOptions { m2p_min_sources: 0, p2l_min_targets: 0 }).unwrap();
    let q = normal_strengths(N, 83);
    let both = Outputs::POTENTIAL | Outputs::GRADIENT;
    for other in [false, true] {
        let what = format!("densities, other targets: {other}");
        let plan = Plan::<f32, f32>::new(&Laplace, both, 4, None, tree(other), lists(&tree(other))).unwrap();
        check(plan, &q, 3e-6, &format!("{what}, f32"));
        let plan =
            Plan::<f64, f64>::new(&Laplace, Outputs::POTENTIAL, 4, None, tree(other), lists(&tree(other))).unwrap();
        check(plan, &q, 1e-13, &what);
    }
    // M2P by polynomials, and with second derivatives by series.
    let settings = SphericalSettings { truncation: Truncation::Fixed, translation: None, parents: false };
    let theta = TreecodeOptions { theta: 0.7, m2p_min_sources: 4 };
    let accepts = Acceptance { sphere: spherical::expansion::M2P_RADIUS, ..Acceptance::default() };
    for outputs in [both, both | Outputs::HESSIAN] {
        let plan = |lists| Plan::<f64, f64>::spherical(&Laplace, outputs, 6, settings, tree(false), lists).unwrap();
        check(plan(lists(&tree(false))), &q, 1e-13, "harmonics");
        check(plan(treecode(&tree(false), &theta, accepts).unwrap()), &q, 1e-13, "treecode");
    }
    let attributes = [nodes::values(N, [0.02, 0.06], 84)];
    let (kernels, q) = (nodes::kernels(&["e"], &attributes, 2), nodes::strengths(N, &attributes));
    assert_eq!(kernels.nodes.count(), 2);
    let plan = Plan::<f64, f64>::of_kernels(&kernels, Fill::Volume, 4, tree(false), lists(&tree(false))).unwrap();
    check(plan, &q, 1e-12, "two far fields");
}
