//! `Solver::bytes` against the allocator. A binary of its own: the counter sees every allocation.

use backend_cpu::{Isa, Precision, Settings, Solver, plan, spherical};
use fmm_kernels::Laplace;
use fmm_kernels::spherical::{SphericalOptions, expansion, horner};
use fmm_traits::testkit::clouds::{CloudKind, uniform_strengths};
use fmm_traits::{Error, Lists, Outputs, Tree};
use fmm_tree::{BuildOptions, ListOptions, TreecodeOptions, build, treecode, uvwx};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Bytes handed out and not yet returned.
static LIVE: AtomicI64 = AtomicI64::new(0);

struct Counting;

// SAFETY: every call goes to the allocator of the system unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as i64, Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as i64, Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Bytes reported and bytes held by a plan of `solver` on the lists of `policy`, after one application to so many sets of
/// strengths, with the tree.
fn measure(
    kind: CloudKind,
    sets: usize,
    policy: impl Fn(&Tree) -> Result<Lists, Error>,
    solver: impl Fn(Tree, Lists) -> Result<Box<dyn Solver>, Error>,
) -> (u64, i64, usize) {
    let n = 20_000;
    let (points, strengths, mut out) = (kind.points(n, 1), uniform_strengths(n, 1), vec![0.0; sets * n]);
    let strengths = vec![&strengths[..]; sets];
    let mut out: Vec<&mut [f64]> = out.chunks_exact_mut(n).collect();
    let before = LIVE.load(Relaxed);
    let tree = build(&points, None, &BuildOptions::default()).unwrap();
    let lists = policy(&tree).unwrap();
    let solver = solver(tree, lists).unwrap();
    let bytes = solver.bytes();
    solver.apply_batch(&strengths, &mut out, &mut |_, _| true).unwrap();
    let forecast = bytes + (sets as u64 - 1) * solver.bytes_of_a_set();
    let ratio = forecast as f64 / solver.bytes() as f64;
    assert!(sets == 1 || (0.8..1.2).contains(&ratio), "{forecast} {}", solver.bytes());
    (solver.bytes(), LIVE.load(Relaxed) - before, solver.tree().len())
}

fn densities(order: usize, precision: Precision) -> impl Fn(Tree, Lists) -> Result<Box<dyn Solver>, Error> {
    let settings = Settings { order, precision, isa: Isa::detect(), cache: None };
    move |tree, lists| plan(&Laplace, Outputs::POTENTIAL, tree, lists, &settings)
}

#[test]
fn reported_bytes_are_those_held() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let lists = |tree: &Tree| uvwx(tree, &ListOptions::default());
    let cases = [
        (CloudKind::Uniform, 6, Precision::F64, 1),
        (CloudKind::Ellipsoid, 4, Precision::F32, 1),
        (CloudKind::Ellipsoid, 5, Precision::F64, 8),
    ];
    for (kind, order, precision, sets) in cases {
        // The first plan also allocates what matrix products keep per thread, whoever calls them.
        pool.install(|| measure(kind, sets, lists, densities(order, precision)));
        let (reported, held, _) = pool.install(|| measure(kind, sets, lists, densities(order, precision)));
        let ratio = reported as f64 / held as f64;
        assert!((0.5..2.0).contains(&ratio), "{}: {reported} reported, {held} held", kind.name());
    }
    // A treecode has no locals: between two orders it grows by its multipoles and the polynomials of those that are evaluated.
    let options = TreecodeOptions { theta: 0.6, m2p_min_sources: 0 };
    let lists = |tree: &Tree| treecode(tree, &options, expansion::m2p_valid);
    let [small, large] = [6, 12].map(|order| {
        let solver = |tree, lists| {
            let settings = Settings { order, precision: Precision::F64, isa: Isa::detect(), cache: None };
            spherical::plan(&Laplace, Outputs::POTENTIAL, tree, lists, &settings, SphericalOptions::default())
        };
        pool.install(|| measure(CloudKind::Uniform, 1, lists, solver))
    });
    let rows = (8 * (12 * 12 - 6 * 6 + horner::len(12) - horner::len(6)) * large.2) as i64;
    let (reported, held) = ((large.0 - small.0) as i64, large.1 - small.1);
    assert!(reported < 5 * rows / 4 && held < reported + rows / 8, "{rows}: {reported} reported, {held} held");
}
