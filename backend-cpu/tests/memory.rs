//! Compares the memory that plans report (`Solver::bytes`) with the allocator, and checks that an application of a plan
//! allocates nothing per box. This is a separate binary, because the counters see every allocation.

use backend_cpu::{Isa, OctreeSolver, Settings};
use fmm_families::{AnyFamily, Expansion};
use fmm_kernels::Laplace;
use fmm_kernels::equivalent::Fill;
use fmm_kernels::spherical::{SphericalOptions, Translation, Truncation, expansion, horner};
use fmm_traits::testkit::clouds::{CloudKind, uniform_strengths};
use fmm_traits::{Error, Lists, Outputs, Precision, Tree};
use fmm_tree::{BuildOptions, ListOptions, TreecodeOptions, build, treecode, uvwx};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes that are allocated and not yet freed.
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);
/// Allocations so far.
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

/// Lets one test run at a time: the counters belong to the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Counting;

// SAFETY: every call goes to the allocator of the system unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size() as i64, Relaxed);
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as i64, Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Bytes that a plan of `solver` on the lists of `policy` reports, bytes that it holds with its tree after one
/// application to `sets` sets of strengths, and the number of boxes.
fn measure(
    kind: CloudKind,
    sets: usize,
    policy: impl Fn(&Tree) -> Result<Lists, Error>,
    solver: impl Fn(Tree, Lists) -> Result<Box<dyn OctreeSolver>, Error>,
) -> (u64, i64, usize) {
    let n = 20_000;
    let (points, strengths, mut out) = (kind.points(n, 1), uniform_strengths(n, 1), vec![0.0; sets * n]);
    let strengths = vec![&strengths[..]; sets];
    let mut out: Vec<&mut [f64]> = out.chunks_exact_mut(n).collect();
    let before = LIVE_BYTES.load(Relaxed);
    // With small leaves, the memory per box outweighs the scratch memory of the threads.
    let tree = build(&points, None, &BuildOptions { ncrit: Some(20), ..Default::default() }).unwrap();
    let lists = policy(&tree).unwrap();
    let solver = solver(tree, lists).unwrap();
    let bytes = solver.bytes();
    solver.apply_batch(&strengths, &mut out, &mut |_, _| true).unwrap();
    let forecast = bytes + (sets as u64 - 1) * solver.bytes_of_a_set();
    let ratio = forecast as f64 / solver.bytes() as f64;
    assert!(sets == 1 || (0.8..1.2).contains(&ratio), "{forecast} {}", solver.bytes());
    (solver.bytes(), LIVE_BYTES.load(Relaxed) - before, solver.tree().len())
}

/// Equivalent densities on surfaces.
const SURFACES: Expansion = Expansion::Equivalent(Fill::Surface);

/// A plan that `fmm-families` has compiled.
fn plan_of(
    outputs: Outputs,
    tree: Tree,
    lists: Lists,
    settings: &Settings,
    expansion: Expansion,
) -> Result<Box<dyn OctreeSolver>, Error> {
    AnyFamily::from(Laplace).in_space(outputs)?.solver(tree, lists, settings, expansion)
}

fn densities(order: usize, precision: Precision) -> impl Fn(Tree, Lists) -> Result<Box<dyn OctreeSolver>, Error> {
    let settings = Settings { order, precision, isa: Isa::detect(), cache: None, near: None };
    move |tree, lists| plan_of(Outputs::POTENTIAL, tree, lists, &settings, SURFACES)
}

#[test]
fn reported_bytes_are_those_held() {
    let _alone = alone();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let lists = |tree: &Tree| uvwx(tree, &ListOptions::default());
    let cases = [
        (CloudKind::Uniform, 6, Precision::F64, 1),
        (CloudKind::Ellipsoid, 4, Precision::F32, 1),
        (CloudKind::Ellipsoid, 5, Precision::F64, 8),
    ];
    for (kind, order, precision, sets) in cases {
        // The first plan also allocates the memory that matrix products keep per thread for any caller.
        pool.install(|| measure(kind, sets, lists, densities(order, precision)));
        let (reported, held, _) = pool.install(|| measure(kind, sets, lists, densities(order, precision)));
        let ratio = reported as f64 / held as f64;
        assert!((0.5..2.0).contains(&ratio), "{}: {reported} reported, {held} held", kind.name());
    }
    // A treecode has no locals. Between two orders, its memory grows by its multipoles and by the polynomials of the
    // multipoles that are evaluated.
    let options = TreecodeOptions { theta: 0.6, m2p_min_sources: 0 };
    let lists = |tree: &Tree| treecode(tree, &options, expansion::m2p_valid);
    let [small, large] = [6, 12].map(|order| {
        let solver = |tree, lists| {
            let settings = Settings { order, precision: Precision::F64, isa: Isa::detect(), cache: None, near: None };
            let harmonics = SphericalOptions { theta: Some(options.theta), ..Default::default() };
            plan_of(Outputs::POTENTIAL, tree, lists, &settings, Expansion::Spherical(harmonics))
        };
        pool.install(|| measure(CloudKind::Uniform, 1, lists, solver))
    });
    let rows = (8 * (12 * 12 - 6 * 6 + horner::len(12) - horner::len(6)) * large.2) as i64;
    let (reported, held) = ((large.0 - small.0) as i64, large.1 - small.1);
    assert!(reported < 5 * rows / 4 && held < reported + rows / 8, "{rows}: {reported} reported, {held} held");
}

/// The number of allocations of one application of a plan that has been applied before, and the number of boxes.
fn allocations(
    policy: impl Fn(&Tree) -> Result<Lists, Error>,
    solver: impl Fn(Tree, Lists) -> Result<Box<dyn OctreeSolver>, Error>,
) -> (usize, usize) {
    let n = 10_000;
    let (points, strengths) = (CloudKind::Ellipsoid.points(n, 1), uniform_strengths(n, 1));
    let tree = build(&points, None, &BuildOptions { ncrit: Some(8), ..Default::default() }).unwrap();
    let lists = policy(&tree).unwrap();
    let solver = solver(tree, lists).unwrap();
    let mut out = vec![0.0; n * solver.values()];
    let mut count = 0;
    for _ in 0..3 {
        let before = ALLOCATIONS.load(Relaxed);
        solver.apply(&strengths, &mut out, &mut |_, _| true).unwrap();
        count = ALLOCATIONS.load(Relaxed) - before;
    }
    (count, solver.tree().len())
}

/// The only allocations are tasks of whole stages: some per stage and level, none per box or leaf.
#[test]
fn an_application_allocates_nothing_for_a_box() {
    let _alone = alone();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let both = Outputs::POTENTIAL | Outputs::GRADIENT;
    let every = |tree: &Tree| uvwx(tree, &ListOptions::default());
    let far = |tree: &Tree| treecode(tree, &TreecodeOptions { theta: 0.6, m2p_min_sources: 0 }, expansion::m2p_valid);
    for (precision, outputs) in [(Precision::F32, both), (Precision::F64, both), (Precision::F64, Outputs::POTENTIAL)] {
        let settings = |order| Settings { order, precision, isa: Isa::detect(), cache: None, near: None };
        let check = |what: &str, (count, boxes): (usize, usize)| {
            assert!(boxes > 2000 && 10 * count < boxes, "{what}, {precision:?}: {count} allocations for {boxes} boxes");
        };
        let solver = |tree, lists| plan_of(outputs, tree, lists, &settings(3), SURFACES);
        check("equivalent densities", pool.install(|| allocations(every, solver)));
        // At order 24, M2P does not use polynomials.
        for (order, translation) in [(4, Translation::Rcr), (4, Translation::Domains), (24, Translation::Rcr)] {
            let options = SphericalOptions { translation, truncation: Truncation::Variable, ..Default::default() };
            let solver = |tree, lists| plan_of(outputs, tree, lists, &settings(order), Expansion::Spherical(options));
            check("spherical harmonics", pool.install(|| allocations(every, solver)));
            let options = SphericalOptions { theta: Some(0.6), ..options };
            let solver = |tree, lists| plan_of(outputs, tree, lists, &settings(order), Expansion::Spherical(options));
            check("a treecode", pool.install(|| allocations(far, solver)));
        }
    }
}
