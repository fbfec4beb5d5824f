//! The whole method on the device: each group of stages against the plain form on the CPU, whole runs
//! against direct sums.

use crate::Test;
use backend_cpu::pairwise::Pairwise;
use backend_cuda::{
    Device, DeviceLists, DeviceScalar, DeviceTree, Direct, Expansion, Plan, Root, Settings, TreeOptions, build, solver,
    uvwx,
};
use fmm_kernels::equivalent::EquivalentExpansion;
use fmm_kernels::equivalent::Fill;
use fmm_kernels::{Gravity, Laplace, LaplaceMixed, Stokes, StokesPressure, Stresslet, Yukawa};
use fmm_traits::lane::dot;
use fmm_traits::testkit::clouds::{CloudKind, normal_strengths};
use fmm_traits::tree::{Edges, Lists};
use fmm_traits::{Error, Family, Kernel, Kernels, Lane, Outputs, Policy, Precision, Real, Stage, Targets, Tree};
use fmm_tree::{BuildOptions, ListOptions};

pub const TESTS: &[Test] = &[
    ("far::each_group_of_stages_agrees_with_the_cpu", stages),
    ("far::a_v_list_with_an_edge_missing", incomplete),
    ("far::a_small_problem_is_cut_out_as_on_the_host", thinned),
    ("far::every_kernel_is_as_accurate_as_its_order", kernels),
    ("far::every_cloud_in_f64", clouds),
    ("far::errors_fall_with_the_order", orders),
    ("far::single_precision", single),
    ("far::a_solver_plans_as_the_cpu_does_and_moves_its_points", solvers),
    ("far::a_kernel_of_the_user", own_kernel),
    ("far::ten_runs_give_the_same_bits", repeatable),
    ("far::bad_strengths_wrong_lists_and_a_stopped_run", errors),
];

pub fn difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let e = norm(&mut a.iter().zip(b).map(|(a, b)| a - b));
    if e == 0.0 { 0.0 } else { e / norm(&mut b.iter().copied()) }
}

pub fn tree_of(device: &Device, s: &[f64], t: Option<&[f64]>, ncrit: usize) -> DeviceTree {
    let send = |x: &[f64]| crate::send(device, x);
    build(device, &send(s), t.map(send).as_ref(), &TreeOptions { ncrit, min_side: 0.0, root: Root::Smallest }).unwrap()
}

/// Relative errors of the outputs of a whole run, against the direct sum on the device in f64.
fn errors_of<T: DeviceScalar, N: Real, F: Family>(
    device: &Device,
    family: &F,
    outputs: Outputs,
    p: usize,
    s: &[f64],
    t: Option<&[f64]>,
    ncrit: usize,
) -> Vec<f64> {
    errors_with(device, family, outputs, s, t, ncrit, |tree, lists| {
        Plan::<T, N>::new(family, outputs, p, None, tree, lists).unwrap()
    })
}

/// [`errors_of`] of a plan that is made of tree and lists.
pub fn errors_with<T: DeviceScalar, N: Real, F: Family>(
    device: &Device,
    family: &F,
    outputs: Outputs,
    s: &[f64],
    t: Option<&[f64]>,
    ncrit: usize,
    plan: impl FnOnce(DeviceTree, DeviceLists) -> Plan<T, N>,
) -> Vec<f64> {
    let q = normal_strengths(s.len() / 3 * F::Source::STRENGTHS, 21);
    let tree = tree_of(device, s, t, ncrit);
    let lists = uvwx(&tree, &ListOptions::default()).unwrap();
    let mut plan = plan(tree, lists);
    let u = plan.apply(&q, &mut |_, _| true).unwrap().0;
    let at = t.map_or(Targets::Sources, Targets::Points);
    let mut sum = Direct::<f64>::new(device, &Kernels::of(family, outputs).unwrap(), s, at, None).unwrap();
    let v = sum.apply(&q).unwrap();
    let m = t.unwrap_or(s).len() / 3;
    let width = u.len() / m.max(1);
    let outputs = plan.columns().iter().map(|o| {
        let pick =
            |x: &[f64]| -> Vec<f64> { x.chunks(width.max(1)).flat_map(|r| o.columns.iter().map(|&c| r[c])).collect() };
        difference(&pick(&u), &pick(&v))
    });
    outputs.collect()
}

/// What order p reaches: the measured errors of the method (1e-3 … 1e-8 for p = 3 … 8), with a margin.
fn bound(p: usize, derivative: usize) -> f64 {
    let pot = 30.0 * 10f64.powi(-(p as i32));
    pot.max(3e-13) * 30f64.powi(derivative as i32)
}

fn one<F: Family>(device: &Device, family: F) {
    let s = CloudKind::Uniform.points(3000, 22);
    let t = CloudKind::Uniform.points(1000, 23);
    for p in [4, 6] {
        let e = errors_of::<f64, f64, F>(device, &family, Outputs::POTENTIAL | Outputs::GRADIENT, p, &s, Some(&t), 30);
        println!("{} p {p}: {e:?}", family.name());
        assert!(e[0] <= bound(p, 0) && e[1] <= bound(p, 1), "{} p {p}: {e:?}", family.name());
        let e = errors_of::<f64, f64, F>(device, &family, Outputs::POTENTIAL, p, &s, None, 30);
        assert!(e[0] <= bound(p, 0), "{} p {p}: {e:?}", family.name());
    }
}

fn kernels(device: &Device) {
    one(device, Laplace);
    one(device, LaplaceMixed);
    one(device, Yukawa { kappa: 3.0 });
    one(device, Gravity { g: 2.0, softening: 0.0 });
    one(device, Stokes { mu: 0.7 });
    one(device, StokesPressure { mu: 0.7 });
    one(device, Stresslet { mu: 0.7 });
}

fn clouds(device: &Device) {
    for kind in CloudKind::ALL {
        for n in [0, 1, 20, 6000] {
            let s = kind.points(n, 24);
            let e = errors_of::<f64, f64, _>(device, &Laplace, Outputs::GRADIENT, 6, &s, None, 25);
            assert!(e[0] <= bound(6, 1), "{} {n}: {e:?}", kind.name());
            let t = CloudKind::Plummer.points(500, 25);
            let e = errors_of::<f64, f64, _>(device, &Laplace, Outputs::POTENTIAL, 6, &s, Some(&t), 25);
            assert!(e[0] <= bound(6, 0), "{} {n} to others: {e:?}", kind.name());
        }
    }
}

fn orders(device: &Device) {
    let s = CloudKind::Uniform.points(20_000, 26);
    let mut last = 1.0;
    for p in [3, 5, 7, 9, 11] {
        let e = errors_of::<f64, f64, _>(device, &Laplace, Outputs::POTENTIAL, p, &s, None, 40)[0];
        println!("p {p}: {e:.2e}");
        assert!(e < 0.1 * last, "p {p}: {e:e} after {last:e}");
        last = e;
    }
    assert!(last < 1e-8, "{last:e}");
}

fn single(device: &Device) {
    for kind in [CloudKind::Uniform, CloudKind::Plummer, CloudKind::Ellipsoid] {
        let s = kind.points(30_000, 27);
        let e = errors_of::<f32, f32, _>(device, &Laplace, Outputs::POTENTIAL | Outputs::GRADIENT, 5, &s, None, 60);
        println!("{}: {e:?}", kind.name());
        assert!(e[0] <= 1e-4 && e[1] <= 3e-3, "{}: {e:?}", kind.name());
    }
    // On a thin line pairs lie closer together than f32 resolves within a leaf: the near field in f64 does.
    let s = CloudKind::Line.points(30_000, 27);
    let e = errors_of::<f32, f64, _>(device, &Laplace, Outputs::POTENTIAL | Outputs::GRADIENT, 5, &s, None, 60);
    println!("near field in f64: {e:?}");
    assert!(e[0] <= 1e-4 && e[1] <= 1e-3, "{e:?}");
}

/// The plan without types: its tree is the one that the CPU chooses, and moving the points takes no new memory.
fn solvers(device: &Device) {
    let tree = BuildOptions { occupancy: 40.0, ..Default::default() };
    let lists = ListOptions { m2p_min_sources: 50, p2l_min_targets: 50 };
    let (expansion, policy) = (Expansion::Equivalent(Fill::Surface), Policy::Uvwx);
    let settings = Settings { expansion, policy, order: 5, lists, beside: None, cache: None };
    let first = CloudKind::Uniform.points(200, 40);
    for kind in CloudKind::ALL {
        let (s, t) = (kind.points(8000, 41), CloudKind::Uniform.points(3000, 42));
        for t in [None, Some(&t[..])] {
            let points = |s: &[f64], t: Option<&[f64]>| crate::placed(device, &tree, s, t);
            let mut plan = solver(
                &Kernels::of(&Laplace, Outputs::POTENTIAL).unwrap(),
                &settings,
                Precision::F32,
                points(&first, None).unwrap(),
            )
            .unwrap();
            plan.set_points(points(&s, t).unwrap()).unwrap();
            let (here, report) = fmm_tree::build_reported(&s, t, &tree).unwrap();
            let (there, rows) = plan.download().unwrap();
            let what = kind.name();
            assert_eq!(
                (there.corner, there.side, &there.level_start),
                (here.corner, here.side, &here.level_start),
                "{what}"
            );
            assert_eq!(plan.report().ncrit, report.ncrit, "{what}");
            let counts = plan.counts();
            assert_eq!(
                (counts.boxes, counts.levels, counts.leaves),
                (here.len(), here.levels(), here.leaves()),
                "{what}"
            );
            let pairs =
                |(b, a): (u32, u32)| (here.targets_of(b as usize).len() * here.sources_of(a as usize).len()) as u64;
            assert_eq!(counts.near_pairs, rows.p2p.iter().map(pairs).sum::<u64>(), "{what}");
            let q = normal_strengths(s.len() / 3, 43);
            let mut u = vec![0.0; t.unwrap_or(&s).len() / 3 * plan.values()];
            plan.apply(&q, &mut u, &mut |_, _| true).unwrap();
            let at = t.map_or(Targets::Sources, Targets::Points);
            let v = Direct::<f64>::new(device, &Kernels::of(&Laplace, Outputs::POTENTIAL).unwrap(), &s, at, None)
                .unwrap()
                .apply(&q)
                .unwrap();
            let e = difference(&u, &v);
            assert!(e <= 3e-4, "{what}: {e:e}");
            assert!(plan.bytes() > 0 && points(&[f64::NAN; 3], None).is_err());
            let mut again = u.clone();
            plan.apply(&q, &mut again, &mut |_, _| true).unwrap();
            assert_eq!(u, again, "{what}: after a refused set of points");
        }
    }
    let clouds: Vec<Vec<f64>> = (0..3).map(|i| CloudKind::Plummer.points(50_000, 44 + i)).collect();
    let points = |i: usize| crate::placed(device, &tree, &clouds[i % 3], None).unwrap();
    let mut plan =
        solver(&Kernels::of(&Laplace, Outputs::GRADIENT).unwrap(), &settings, Precision::F64, points(0)).unwrap();
    let mut step = |i: usize| plan.set_points(points(i)).unwrap();
    (0..4).for_each(&mut step);
    let before = device.reserved_memory().unwrap();
    (0..6).for_each(&mut step);
    assert_eq!(device.reserved_memory().unwrap(), before);
}

/// e^(-κr)/r, written by somebody who knows no CUDA; its gradient comes from dual numbers.
#[derive(Clone, Debug)]
struct Own(f64);
impl Kernel for Own {
    const NAME: &'static str = "own_screened";
    #[inline(always)]
    fn eval<V: Lane>(p: &[V], r: &[V], q: &[V], u: &mut [V]) {
        let r2 = dot(r, r);
        let inverse = r2.rsqrt();
        u[0] = q[0] * inverse * (-(p[0] * r2 * inverse)).exp();
    }
    fn value_degree(_: usize) -> i32 {
        -1
    }
    fn dilated(params: &[f64], h: f64) -> Option<Vec<f64>> {
        Some(params.iter().map(|p| p * h).collect())
    }
    fn parameters(&self) -> Vec<f64> {
        vec![self.0]
    }
}

fn own_kernel(device: &Device) {
    one(device, Own(5.0));
}

/// Ten evaluations, bit by bit.
pub fn ten_runs_give_the_same_bits<T: DeviceScalar, N: Real>(plan: &mut Plan<T, N>, q: &[f64]) {
    let first = plan.apply(q, &mut |_, _| true).unwrap().0;
    for _ in 0..9 {
        let again = plan.apply(q, &mut |_, _| true).unwrap().0;
        assert!(again.iter().zip(&first).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}

fn repeatable(device: &Device) {
    let s = CloudKind::Clustered.points(20_000, 28);
    let q = normal_strengths(20_000, 28);
    let tree = tree_of(device, &s, None, 30);
    let lists = uvwx(&tree, &ListOptions::default()).unwrap();
    let mut plan = Plan::<f32, f32>::new(&Laplace, Outputs::GRADIENT, 4, None, tree, lists).unwrap();
    ten_runs_give_the_same_bits(&mut plan, &q);
}

fn errors(device: &Device) {
    let s = CloudKind::Uniform.points(2000, 29);
    let tree = || tree_of(device, &s, None, 10);
    let host = uvwx(&tree(), &ListOptions::default()).unwrap().download().unwrap();
    let plan = |lists: &Lists, p| {
        let lists = DeviceLists::upload(device, lists).unwrap();
        Plan::<f64, f64>::new(&Laplace, Outputs::POTENTIAL, p, None, tree(), lists)
    };
    assert!(matches!(plan(&host, 2), Err(Error::Order { order: 2, .. })));
    let mut adjacent = host.clone();
    adjacent.m2l = host.p2p.clone();
    assert!(matches!(plan(&adjacent, 4), Err(Error::Edge { .. })));
    let mut good = plan(&host, 4).unwrap();
    assert!(matches!(good.apply(&[1.0; 5], &mut |_, _| true), Err(Error::Shape { found: 5, .. })));
    let stopped = good.apply(&[1.0; 2000], &mut |stage, _| stage != Stage::P2p);
    assert!(matches!(stopped, Err(Error::Cancelled { stage: "p2p" })));
    assert!(good.apply(&[1.0; 2000], &mut |_, _| true).is_ok());
}

/// Stages are isolated by leaving edges out: the same lists go to both.
pub fn groups(all: &Lists) -> [(&'static str, Lists); 4] {
    let none = Edges::none(all.p2p.starts.len() - 1);
    let keep = |kinds: &[&str]| {
        let of = |name: &str, e: &Edges| if kinds.contains(&name) { e.clone() } else { none.clone() };
        Lists {
            p2m: of("p2m", &all.p2m),
            m2m: of("m2m", &all.m2m),
            m2l: of("m2l", &all.m2l),
            p2l: of("p2l", &all.p2l),
            l2l: of("l2l", &all.l2l),
            m2p: of("m2p", &all.m2p),
            l2p: of("l2p", &all.l2p),
            p2p: of("p2p", &all.p2p),
        }
    };
    [
        ("p2p", keep(&["p2p"])),
        ("p2m m2m m2p", keep(&["p2m", "m2m", "m2p"])),
        ("p2l l2l l2p", keep(&["p2l", "l2l", "l2p"])),
        ("p2m m2m m2l l2l l2p", keep(&["p2m", "m2m", "m2l", "l2l", "l2p"])),
    ]
}

/// The plain form on the CPU, of order 5: values in the caller's order.
fn plain(family: &impl Family, outputs: Outputs, tree: &Tree, lists: &Lists, strengths: &[f64]) -> Vec<f64> {
    let kernels = Kernels::of(family, outputs).unwrap();
    let sides: Vec<f64> = (0..tree.levels()).map(|l| tree.side_at(l)).collect();
    let expansion = EquivalentExpansion::<f64>::new(&kernels, 5, &sides).unwrap();
    let values = Pairwise::new(tree, lists, &expansion).unwrap().apply(strengths, &mut |_, _| true).unwrap();
    values.iter().map(|x| x * kernels.scale).collect()
}

fn stages_of<F: Family>(device: &Device, family: &F, kind: CloudKind, other: bool) {
    let s = kind.points(1500, 30);
    let t = other.then(|| CloudKind::Uniform.points(700, 31));
    let q = normal_strengths(1500 * F::Source::STRENGTHS, 30);
    let here = tree_of(device, &s, t.as_deref(), 12).download().unwrap();
    let all = fmm_tree::uvwx(&here, &ListOptions::default()).unwrap();
    for (name, lists) in groups(&all) {
        let v = plain(family, Outputs::GRADIENT, &here, &lists, &q);
        let there = tree_of(device, &s, t.as_deref(), 12);
        let lists = DeviceLists::upload(device, &lists).unwrap();
        let mut plan = Plan::<f64, f64>::new(family, Outputs::GRADIENT, 5, None, there, lists).unwrap();
        let u = plan.apply(&q, &mut |_, _| true).unwrap().0;
        let e = difference(&u, &v);
        println!("{} {} {name}: {e:.1e}", family.name(), kind.name());
        // Both sum the same terms; surface solves amplify rounding by up to 1/cutoff at this order, 1e7.
        assert!(e <= 1e-8, "{} {} {name}: {e:e}", family.name(), kind.name());
        assert!(v.iter().any(|&x| x != 0.0), "{} {name} does nothing", kind.name());
    }
}

/// A small problem cut out on the device, as the probe of a plan does, against `fmm_tree::thin`.
fn thinned(device: &Device) {
    let family = Laplace;
    let policies = [
        (Expansion::Equivalent(Fill::Surface), Policy::Uvwx),
        (Expansion::Equivalent(Fill::Surface), Policy::Treecode { theta: 0.8 }),
    ];
    for (kind, (expansion, policy)) in [CloudKind::Uniform, CloudKind::Ellipsoid, CloudKind::TwoClusters]
        .into_iter()
        .flat_map(|k| policies.map(|p| (k, p)))
    {
        let (points, options) = (kind.points(4000, 33), BuildOptions { ncrit: Some(12), ..BuildOptions::default() });
        let thresholds = ListOptions::default();
        let settings = Settings { expansion, policy, order: 5, lists: thresholds, beside: None, cache: None };
        let whole = crate::placed(device, &options, &points, None).unwrap();
        let copy = solver(&Kernels::of(&family, Outputs::GRADIENT).unwrap(), &settings, Precision::F64, whole).unwrap();
        let (here, lists) = copy.download().unwrap();
        let every = |first: u32, step: usize| (first..4000).step_by(step).collect::<Vec<u32>>();
        let (sources, targets) = (every(0, 3), every(1, 7));

        let mut placed = crate::placed(device, &options, &points, None).unwrap();
        let cut = placed.cut(&settings).unwrap();
        crate::cuts::same(&cut, &here, &lists, [&sources, &targets], kind.name());

        let (small, lists) = fmm_tree::thin(&here, &lists, &sources, &targets);
        let there = placed.cut(&settings).unwrap().thin([&sources, &targets]).unwrap();
        let solver =
            solver(&Kernels::of(&family, Outputs::GRADIENT).unwrap(), &settings, Precision::F64, there).unwrap();
        let (copy, copied_lists) = solver.download().unwrap();
        assert_eq!((&copy.parent, &copy.level_start, &copy.anchor), (&small.parent, &small.level_start, &small.anchor));
        assert_eq!((&copy.source_range, &copy.target_range), (&small.source_range, &small.target_range));
        assert_eq!((&copy.sources.xyz, &copy.targets.order), (&small.sources.xyz, &small.targets.order));
        assert_eq!(copied_lists, lists, "{}", kind.name());
        assert_eq!(solver.counts().leaves, small.leaves());
        let q = normal_strengths(small.sources.len(), 33);
        let v = plain(&family, Outputs::GRADIENT, &small, &lists, &q);
        let mut u = vec![0.0; v.len()];
        solver.apply(&q, &mut u, &mut |_, _| true).unwrap();
        let e = difference(&u, &v);
        // As in `stages_of`, with a few targets beside each other that see cancelling sums.
        assert!(e <= 1e-7, "{} {policy:?}: {e:e}", kind.name());
    }
}

/// A V list that is not that of the rules is summed by dense matrices.
fn incomplete(device: &Device) {
    let (s, q) = (CloudKind::Clustered.points(2000, 32), normal_strengths(2000, 32));
    let here = tree_of(device, &s, None, 12).download().unwrap();
    let mut lists = fmm_tree::uvwx(&here, &ListOptions::default()).unwrap();
    crate::without_last_edge(&mut lists);
    let v = plain(&Laplace, Outputs::POTENTIAL, &here, &lists, &q);
    let there = DeviceLists::upload(device, &lists).unwrap();
    let outputs = Outputs::POTENTIAL;
    let mut plan = Plan::<f64, f64>::new(&Laplace, outputs, 5, None, tree_of(device, &s, None, 12), there).unwrap();
    let e = difference(&plan.apply(&q, &mut |_, _| true).unwrap().0, &v);
    assert!(e <= 1e-8, "{e:e}");
}

fn stages(device: &Device) {
    stages_of(device, &Laplace, CloudKind::Clustered, false);
    stages_of(device, &Laplace, CloudKind::Plummer, true);
    // Children and whole directions that are not there.
    stages_of(device, &Laplace, CloudKind::Sphere, false);
    stages_of(device, &Laplace, CloudKind::Plane, true);
    stages_of(device, &Yukawa { kappa: 2.0 }, CloudKind::Clustered, true);
    stages_of(device, &LaplaceMixed, CloudKind::Clustered, true);
    stages_of(device, &StokesPressure { mu: 0.7 }, CloudKind::Plummer, true);
}
