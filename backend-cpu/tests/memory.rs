//! `Solver::bytes` against the allocator. A binary of its own: the counter sees every allocation.

use backend_cpu::{Isa, Precision, Settings, plan};
use fmm_kernels::Laplace;
use fmm_traits::Outputs;
use fmm_traits::testkit::clouds::{CloudKind, uniform_strengths};
use fmm_tree::{BuildOptions, ListOptions, build, uvwx};
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

/// Bytes reported and bytes held by a plan with tree and lists, after one application.
fn measure(kind: CloudKind, order: usize, precision: Precision) -> (u64, i64) {
    let n = 20_000;
    let (points, strengths, mut out) = (kind.points(n, 1), uniform_strengths(n, 1), vec![0.0; n]);
    let before = LIVE.load(Relaxed);
    let tree = build(&points, None, &BuildOptions::default()).unwrap();
    let lists = uvwx(&tree, &ListOptions::default()).unwrap();
    let settings = Settings { order, precision, isa: Isa::detect(), cache: None };
    let solver = plan(&Laplace, Outputs::POTENTIAL, tree, lists, &settings).unwrap();
    solver.apply(&strengths, &mut out, &mut |_, _| true).unwrap();
    (solver.bytes(), LIVE.load(Relaxed) - before)
}

#[test]
fn reported_bytes_are_those_held() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    for (kind, order, precision) in [(CloudKind::Uniform, 6, Precision::F64), (CloudKind::Ellipsoid, 4, Precision::F32)]
    {
        // The first plan also allocates what matrix products keep per thread, whoever calls them.
        pool.install(|| measure(kind, order, precision));
        let (reported, held) = pool.install(|| measure(kind, order, precision));
        let ratio = reported as f64 / held as f64;
        assert!((0.5..2.0).contains(&ratio), "{}: {reported} reported, {held} held", kind.name());
    }
}
