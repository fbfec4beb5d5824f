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

/// Bytes reported and bytes held by a plan with tree and lists, after one application to so many sets of strengths.
fn measure(kind: CloudKind, order: usize, precision: Precision, sets: usize) -> (u64, i64) {
    let n = 20_000;
    let (points, strengths, mut out) = (kind.points(n, 1), uniform_strengths(n, 1), vec![0.0; sets * n]);
    let strengths = vec![&strengths[..]; sets];
    let mut out: Vec<&mut [f64]> = out.chunks_exact_mut(n).collect();
    let before = LIVE.load(Relaxed);
    let tree = build(&points, None, &BuildOptions::default()).unwrap();
    let lists = uvwx(&tree, &ListOptions::default()).unwrap();
    let settings = Settings { order, precision, isa: Isa::detect(), cache: None };
    let solver = plan(&Laplace, Outputs::POTENTIAL, tree, lists, &settings).unwrap();
    let bytes = solver.bytes();
    solver.apply_batch(&strengths, &mut out, &mut |_, _| true).unwrap();
    let forecast = bytes + (sets as u64 - 1) * solver.bytes_of_a_set();
    assert!((0.8..1.2).contains(&(forecast as f64 / solver.bytes() as f64)), "{forecast} {}", solver.bytes());
    (solver.bytes(), LIVE.load(Relaxed) - before)
}

#[test]
fn reported_bytes_are_those_held() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let cases = [
        (CloudKind::Uniform, 6, Precision::F64, 1),
        (CloudKind::Ellipsoid, 4, Precision::F32, 1),
        (CloudKind::Ellipsoid, 5, Precision::F64, 8),
    ];
    for (kind, order, precision, sets) in cases {
        // The first plan also allocates what matrix products keep per thread, whoever calls them.
        pool.install(|| measure(kind, order, precision, sets));
        let (reported, held) = pool.install(|| measure(kind, order, precision, sets));
        let ratio = reported as f64 / held as f64;
        assert!((0.5..2.0).contains(&ratio), "{}: {reported} reported, {held} held", kind.name());
    }
}
