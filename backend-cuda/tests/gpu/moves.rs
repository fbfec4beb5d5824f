//! New points of a plan: the calls of the driver that they take. Only the emulated GPU (`cuda-emulator/`) counts calls.

use crate::Test;
use adaptive2d::{ConnectOptions, PyramidOptions};
use backend_cuda::{
    CallerPoints, Device, Expansion, Placed, PlanePlaced, PlaneSettings, Settings, plane_solver, solver,
};
use fmm_kernels::equivalent::Fill;
use fmm_kernels::{Harmonic2d, Laplace, Yukawa};
use fmm_traits::testkit::clouds::CloudKind;
use fmm_traits::testkit::plane::PlaneKind;
use fmm_traits::{Kernels, OutputColumns, Outputs, Policy, Precision};
use fmm_tree::{BuildOptions, ListOptions};
use std::ffi::{CStr, c_char, c_int, c_void};

pub const TESTS: &[Test] = &[
    ("moves::new_points_take_few_calls", new_points_take_few_calls),
    ("moves::new_points_in_the_plane", new_points_in_the_plane),
    ("moves::new_points_that_are_given_up", new_points_that_are_given_up),
    ("moves::reserved_memory_is_taken_once", reserved_memory_is_taken_once),
];

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}
/// Flags of `dlopen` on Linux: bind at once, and only if the library is loaded already.
const LOADED: c_int = 2 | 4;

/// The function of the emulated driver that tells how often a call was made; `None` on a real GPU.
fn counter() -> Option<impl Fn(&CStr) -> u64> {
    // SAFETY: the names end with a zero, and the library stays loaded.
    let found = unsafe {
        let library = dlopen(c"libcuda.so".as_ptr(), LOADED);
        if library.is_null() { library } else { dlsym(library, c"emulatedCalls".as_ptr()) }
    };
    if found.is_null() {
        return None;
    }
    // SAFETY: the function has this signature (cuda-emulator/driver.cpp).
    let count = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(*const c_char) -> u64>(found) };
    Some(move |name: &CStr| count(name.as_ptr()))
}

/// The calls that some work takes: waits, copies to the host, launches, allocations, questions about memory. Zeros on a
/// real GPU.
fn calls_of_any(work: impl FnOnce()) -> [u64; 5] {
    let count = counter();
    let calls = |names: &[&CStr]| count.as_ref().map_or(0, |count| names.iter().map(|name| count(name)).sum::<u64>());
    let all = || {
        [
            calls(&[c"cuStreamSynchronize", c"cuEventSynchronize"]),
            calls(&[c"cuMemcpyDtoHAsync_v2", c"cuMemcpyDtoH_v2"]),
            calls(&[c"cuLaunchKernel"]),
            calls(&[c"cuMemAllocAsync", c"cuMemAlloc_v2"]),
            calls(&[c"cuMemGetInfo_v2"]),
        ]
    };
    let before = all();
    work();
    let after = all();
    let taken = std::array::from_fn(|k| after[k] - before[k]);
    println!("waits, copies to the host, launches, allocations, questions about memory: {taken:?}");
    taken
}

/// [`calls_of_any`] of work that waits for the device.
fn calls_of(work: impl FnOnce()) -> [u64; 5] {
    let taken = calls_of_any(work);
    assert!(counter().is_none() || taken[0] > 0, "the emulated GPU counts nothing");
    taken
}

/// Checks the calls of new points: at most so many waits, copies to the host and launches. Without a pool of memory,
/// each array is allocated, and nothing is known of memory that was given back.
fn few(device: &Device, taken: [u64; 5], [waits, copies, launches]: [u64; 3]) {
    let [allocations, questions] = if device.reserved_memory().unwrap() > 0 { [4, 0] } else { [400, 1] };
    let most = [waits, copies, launches, allocations, questions];
    assert!(taken.iter().zip(most).all(|(taken, most)| *taken <= most), "{taken:?} instead of {most:?}");
}

/// Memory that is reserved comes from the driver in one piece, unless as much is kept already. Without a pool none is
/// reserved.
fn reserved_memory_is_taken_once(device: &Device) {
    const BYTES: u64 = 64 << 20;
    let before = device.reserved_memory().unwrap();
    let pooled = before > 0;
    let taken = calls_of_any(|| device.reserve(before + BYTES).unwrap());
    let after = device.reserved_memory().unwrap();
    assert!(!pooled || after >= before + BYTES, "{before} and {after}");
    assert!(taken[3] <= u64::from(pooled), "{taken:?}");
    assert_eq!(calls_of_any(|| device.reserve(BYTES).unwrap())[3], 0);
    // More than the device has is not reserved.
    device.reserve(device.info().memory).unwrap();
    assert_eq!(device.reserved_memory().unwrap(), after);
}

/// Equivalent densities of order 4.
fn settings() -> Settings {
    Settings {
        expansion: Expansion::Equivalent(Fill::Surface),
        policy: Policy::Uvwx,
        order: 4,
        lists: ListOptions::default(),
        beside: None,
        cache: None,
    }
}

/// Points that move a little. Waits cost most, then copies to the host, then launches and allocations.
fn new_points_take_few_calls(device: &Device) {
    let options = BuildOptions { occupancy: 30.0, ..BuildOptions::default() };
    let points = |seed| crate::placed(device, &options, &CloudKind::Uniform.points(40_000, seed), None).unwrap();
    let kernels = Kernels::of(&Laplace, Outputs::POTENTIAL).unwrap();
    let mut plan = solver(&kernels, &settings(), Precision::F32, points(0)).unwrap();
    (1..3).for_each(|seed| plan.set_points(points(seed)).unwrap());
    few(device, calls_of(|| plan.set_points(points(3)).unwrap()), [16, 17, 112]);
}

/// New points that were made and given up leave the sums as they were. They ask for operators of boxes of another size,
/// which dense M2L of the present boxes must not take.
fn new_points_that_are_given_up(device: &Device) {
    let options = BuildOptions { occupancy: 20.0, ..BuildOptions::default() };
    let points = |scale: f64| {
        let x: Vec<f64> = CloudKind::Uniform.points(2000, 5).iter().map(|x| scale * x).collect();
        let tree = fmm_tree::build(&x, None, &options).unwrap();
        let mut lists = fmm_tree::uvwx(&tree, &ListOptions::default()).unwrap();
        crate::without_last_edge(&mut lists);
        Placed::upload(device, &tree, &lists, None).unwrap()
    };
    let kernels = Kernels::of(&Yukawa { kappa: 3.0 }, Outputs::POTENTIAL).unwrap();
    let q: Vec<f64> = (0..2000).map(|i| 1.0 + (i % 7) as f64).collect();
    let sums = |given_up: bool| {
        let mut plan = solver(&kernels, &settings(), Precision::F64, points(1.0)).unwrap();
        if given_up {
            plan.make(points(1.7)).unwrap();
            plan.forget();
        }
        let mut out = vec![0.0; 2000];
        plan.apply(&q, &mut out, &mut |_, _| true).unwrap();
        out
    };
    assert!(sums(true) == sums(false));
}

/// Points that move a little in the plane, where 40 000 points have a pyramid of seven levels.
fn new_points_in_the_plane(device: &Device) {
    let settings = PlaneSettings {
        kernel: Harmonic2d.into(),
        columns: vec![OutputColumns { output: Outputs::POTENTIAL, columns: vec![0, 1] }],
        derivatives: 0,
        order: Some(10),
        precision: Precision::F64,
        near: Precision::F64,
    };
    let options = PyramidOptions { population: 30.0, ..PyramidOptions::default() };
    let points = |seed| {
        let points = PlaneKind::Uniform.points(40_000, seed);
        let points = CallerPoints::of_dim(device, 2, "points", &points).unwrap();
        PlanePlaced::new(device, &points, None, &options, &ConnectOptions::default()).unwrap()
    };
    let mut plan = plane_solver(&settings, points(0)).unwrap();
    (1..3).for_each(|seed| plan.set_points(points(seed)).unwrap());
    few(device, calls_of(|| plan.set_points(points(3)).unwrap()), [7, 6, 44]);
}
