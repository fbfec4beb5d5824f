//! Errors are typed, and the device works after them.

use crate::{Test, direct};
use backend_cuda::{CallerPoints, Device, DeviceOptions, Direct, Root, TreeOptions, build};
use fmm_kernels::{Laplace, StokesPressure};
use fmm_traits::{Error, Kernels, Outputs, Targets};

pub const TESTS: &[Test] = &[
    ("errors::bad_input_is_refused_and_the_next_call_works", bad_input),
    ("errors::what_does_not_fit_says_how_much_is_needed", too_large),
    ("errors::programs_are_cached_on_disk", cached),
    ("errors::a_device_that_is_not_there_is_an_error", absent),
];

fn works(device: &Device) {
    let u =
        direct::<f64, _>(device, &Laplace, Outputs::POTENTIAL, &[0.0; 3], &[1.0], Targets::Points(&[2.0, 0.0, 0.0]));
    let expected = 1.0 / (8.0 * std::f64::consts::PI);
    assert!((u.unwrap().0[0] - expected).abs() < 1e-15);
}

fn bad_input(device: &Device) {
    let potential = Outputs::POTENTIAL;
    let sum = |x: &[f64], q: &[f64], t: Targets| direct::<f32, _>(device, &Laplace, potential, x, q, t).unwrap_err();
    assert!(matches!(sum(&[0.0; 4], &[1.0], Targets::Sources), Error::Shape { array: "sources", .. }));
    assert!(matches!(sum(&[0.0; 3], &[1.0; 2], Targets::Sources), Error::Shape { array: "strengths", .. }));
    assert!(matches!(sum(&[0.0; 3], &[1.0], Targets::Points(&[0.0; 2])), Error::Shape { array: "targets", .. }));
    assert!(matches!(sum(&[0.0; 3], &[1.0], Targets::Subset(&[1])), Error::TooMany { found: 1, .. }));
    let mut points = vec![0.5; 300];
    points[151] = f64::NAN;
    points[200] = f64::INFINITY;
    let send = |x: &[f64]| crate::send(device, x);
    assert!(matches!(CallerPoints::new(device, "points", &[0.0; 4]), Err(Error::Shape { found: 4, .. })));
    let e = CallerPoints::new(device, "sources", &points).unwrap_err();
    assert!(matches!(e, Error::NotFinite { array: "sources", row: 50, column: 1, .. }), "{e}");
    let e = CallerPoints::new(device, "targets", &[f64::INFINITY, 0.0, 0.0]).unwrap_err();
    assert!(matches!(e, Error::NotFinite { array: "targets", row: 0, column: 0, .. }), "{e}");
    for (ncrit, min_side, root) in [
        (0, 0.0, Root::Smallest),
        (1, -1.0, Root::Smallest),
        (1, 0.0, Root::Given([0.0; 3], 0.1)),
        (1, 0.0, Root::Given([0.0; 3], f64::NAN)),
    ] {
        let e = build(device, &send(&[0.5; 3]), None, &TreeOptions { ncrit, min_side, root }).unwrap_err();
        assert!(matches!(e, Error::Parameter { .. }), "{e}");
    }
    works(device);
}

/// More than the memory of the device: sums of forty values at many targets.
fn too_large(device: &Device) {
    let before = device.free_memory().unwrap();
    let targets = vec![0; (device.info().memory / 600) as usize];
    let (family, outputs) = (StokesPressure { mu: 1.0 }, Outputs::HESSIAN | Outputs::PRESSURE);
    let sum =
        Direct::<f64>::new(device, &Kernels::of(&family, outputs).unwrap(), &[0.0; 3], Targets::Subset(&targets), None);
    match sum {
        Err(Error::Memory { needed, available, what }) => {
            assert!(needed > available && !what.is_empty(), "{needed} {available} {what}");
        }
        other => panic!("{:?}", other.map(|_| ())),
    }
    works(device);
    device.synchronize().unwrap();
    let after = device.free_memory().unwrap();
    assert!(after + (1 << 30) > before, "{before} bytes were free, now {after}");
}

fn cached(_: &Device) {
    let folder = tempfile::tempdir().unwrap();
    let options = DeviceOptions { ordinal: 0, cache: Some(folder.path().to_path_buf()), ..Default::default() };
    let files = || std::fs::read_dir(folder.path()).unwrap().count();
    let mut first = None;
    for _ in 0..2 {
        let start = std::time::Instant::now();
        works(&Device::open(&options).unwrap());
        println!("first sum after {:.3} s", start.elapsed().as_secs_f64());
        assert!(files() > 0 && *first.get_or_insert(files()) == files());
    }
}

fn absent(_: &Device) {
    let e = Device::open(&DeviceOptions { ordinal: 1000, ..Default::default() }).unwrap_err();
    assert!(matches!(&e, Error::NoDevice { reason } if reason.contains("1000")), "{e}");
}
