//! Targets in pieces: the same bits as all at once, and what a limit of memory allows.

use crate::Test;
use crate::far::tree_of;
use backend_cuda::{
    Acceptance, Device, DeviceArray, DeviceLists, DeviceOptions, DeviceScalar, DeviceStream, DeviceTree, Plan,
    SphericalSettings, treecode, uvwx,
};
use fmm_kernels::spherical::{self, Truncation};
use fmm_kernels::{Laplace, StokesPressure};
use fmm_traits::testkit::clouds::{CloudKind, normal_strengths};
use fmm_traits::{Error, Family, Kernel, Numbers, NumbersMut, Outputs, Real, Stage};
use fmm_tree::{ListOptions, TreecodeOptions};

pub const TESTS: &[Test] = &[
    ("pieces::harmonics_have_the_same_bits", harmonics),
    ("pieces::densities_and_treecodes_have_the_same_bits", others),
    ("pieces::a_limit_of_memory_cuts_the_targets", limit),
];

const N: usize = 1500;
const HARMONICS: SphericalSettings =
    SphericalSettings { truncation: Truncation::Fixed, translation: None, parents: false };

fn lists(tree: &DeviceTree) -> DeviceLists {
    uvwx(tree, &ListOptions::default()).unwrap()
}

/// Compares a plan in two and in five pieces with the plan in one, on arrays of the host and of the device.
fn compare<T: DeviceScalar, R: Real>(device: &Device, mut plan: Plan<T, R>, strengths: usize, what: &str) {
    let q = normal_strengths(N * strengths, 5);
    let m = plan.tree().targets.len();
    for beside in [true, false] {
        plan.set_beside(Some(beside));
        plan.set_piece(m).unwrap();
        assert_eq!(plan.pieces(), 1);
        let whole = plan.apply(&q, &mut |_, _| true).unwrap().0;
        assert!(whole.iter().any(|u| *u != 0.0));
        let mut counts = vec![];
        for most in [m / 2 + 60, m / 5 + 60, m / 10] {
            plan.set_piece(most).unwrap();
            counts.push(plan.pieces());
            assert!(plan.pieces() > 1, "{what}: {most} of {m}");
            let mut gathers = 0;
            let mut count = |stage: Stage, _: f64| {
                gathers += usize::from(stage == Stage::Gather);
                true
            };
            let found = plan.apply(&q, &mut count).unwrap().0;
            assert!(found == whole, "{what}, {most} at once, beside: {beside}");
            assert_eq!(gathers, plan.pieces());
            // Nothing is recorded: the third evaluation is as the first.
            let given = DeviceArray::new(device, &q).unwrap();
            let columns: Vec<Vec<usize>> = plan.columns().iter().map(|c| c.columns.clone()).collect();
            let there: Vec<DeviceArray> =
                columns.iter().map(|c| DeviceArray::zeros::<f64>(device, m * c.len()).unwrap()).collect();
            for _ in 0..3 {
                plan.enqueue(&given, &there, &DeviceStream::Null).unwrap();
            }
            plan.synchronize().unwrap();
            let width = plan.values();
            for (columns, there) in columns.iter().zip(&there) {
                let expected: Vec<f64> = whole.chunks(width).flat_map(|row| columns.iter().map(|&c| row[c])).collect();
                assert!(there.download::<f64>().unwrap() == expected, "{what}, arrays of the device");
            }
        }
        assert!(counts[0] >= 2 && counts[1] >= 5 && counts[2] > counts[1], "{what}: {counts:?} pieces");
    }
    // A run that stops within a piece changes nothing for the next.
    let whole = {
        plan.set_piece(m).unwrap();
        plan.apply(&q, &mut |_, _| true).unwrap().0
    };
    plan.set_piece(m / 5 + 60).unwrap();
    let mut gathers = 0;
    let stop = &mut |stage: Stage, _: f64| {
        gathers += usize::from(stage == Stage::Gather);
        gathers < 3
    };
    assert!(matches!(plan.apply(&q, stop), Err(Error::Cancelled { .. })));
    assert!(plan.apply(&q, &mut |_, _| true).unwrap().0 == whole, "{what}, after a stop");
    match plan.set_piece(1) {
        Err(Error::Memory { needed, available, what }) => {
            assert!(needed > available && what.contains("leaf"), "{needed} {available} {what}");
        }
        other => panic!("{other:?}"),
    }
}

fn harmonics(device: &Device) {
    let both = Outputs::POTENTIAL | Outputs::GRADIENT;
    for kind in [CloudKind::Uniform, CloudKind::Clustered] {
        let (s, t) = (kind.points(N, 71), CloudKind::Plummer.points(1000, 72));
        for t in [None, Some(&t[..])] {
            let tree = tree_of(device, &s, t, 40);
            let lists = lists(&tree);
            let plan = Plan::<f32, f32>::spherical(&Laplace, both, 4, HARMONICS, tree, lists).unwrap();
            compare(device, plan, 1, &format!("{}, targets apart: {}", kind.name(), t.is_some()));
        }
    }
}

fn others(device: &Device) {
    let (s, family) = (CloudKind::Clustered.points(N, 73), StokesPressure { mu: 0.7 });
    let tree = tree_of(device, &s, None, 40);
    let uvwx = lists(&tree);
    let width = <StokesPressure as Family>::Source::STRENGTHS;
    let plan = Plan::<f64, f64>::new(&family, Outputs::POTENTIAL, 3, None, tree, uvwx).unwrap();
    compare(device, plan, width, "densities");
    let tree = tree_of(device, &s, None, 40);
    let options = TreecodeOptions { theta: 0.7, m2p_min_sources: 10 };
    let sphere = Acceptance { sphere: spherical::expansion::M2P_RADIUS, ..Acceptance::default() };
    let lists = treecode(&tree, &options, sphere).unwrap();
    assert!(!lists.m2p.is_empty());
    let both = Outputs::POTENTIAL | Outputs::GRADIENT;
    let plan = Plan::<f64, f64>::spherical(&Laplace, both, 4, HARMONICS, tree, lists).unwrap();
    compare(device, plan, 1, "a treecode");
}

/// A plan within a limit takes as many targets at once as the limit allows, or says what is missing.
fn limit(_: &Device) {
    let s = CloudKind::Uniform.points(N, 74);
    let q: Vec<f32> = normal_strengths(N, 75).iter().map(|&q| q as f32).collect();
    let both = Outputs::POTENTIAL | Outputs::GRADIENT;
    let sums = |memory: Option<u64>| -> Result<(usize, Vec<f32>, u64), Error> {
        let device = Device::open(&DeviceOptions { memory, ..Default::default() })?;
        device.watch_memory();
        let given = backend_cuda::CallerPoints::new(&device, "sources", &s)?;
        let options = backend_cuda::TreeOptions { ncrit: 40, min_side: 0.0, root: backend_cuda::Root::Smallest };
        let tree = backend_cuda::build(&device, &given, None, &options)?;
        let lists = uvwx(&tree, &ListOptions::default())?;
        let mut plan = Plan::<f32, f32>::spherical(&Laplace, both, 4, HARMONICS, tree, lists)?;
        let [mut u, mut g] = [vec![0f32; N], vec![0f32; 3 * N]];
        let mut out = [NumbersMut::F32(&mut u), NumbersMut::F32(&mut g)];
        plan.apply_numbers(Numbers::F32(&q), &mut out, &mut |_, _| true)?;
        Ok((plan.pieces(), [u, g].concat(), device.most_memory().iter().map(|row| row.1).sum()))
    };
    let (pieces, whole, most) = sums(None).unwrap();
    assert_eq!(pieces, 1);
    let (mut counts, mut refused) = (vec![], 0);
    // The arrays that are there with all targets at once, without the sums, are what remains.
    let step = (N * 4 * size_of::<f64>()) as u64 / 8;
    for k in 0..16 {
        let limit = (most + 2 * step).saturating_sub(k * step);
        match sums(Some(limit)) {
            Ok((pieces, found, used)) => {
                assert!(found == whole && used <= limit, "{pieces} pieces: {used} of {limit} bytes");
                counts.push(pieces);
            }
            Err(Error::Memory { needed, available, what }) => {
                println!("{limit} bytes: {needed} > {available}, {what}");
                assert!(needed > available, "{needed} {available} {what}");
                refused += 1;
            }
            Err(e) => panic!("{e}"),
        }
    }
    println!("{most} bytes in one piece; {counts:?} pieces, {refused} limits refused");
    assert!(counts.iter().any(|&c| c > 1) && counts.is_sorted() && refused > 0, "{counts:?} {refused}");
}
