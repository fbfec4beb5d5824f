//! Sums over arrays in the memory of an NVIDIA GPU. Here the arrays are filled from the host. A code with its points on
//! the GPU wraps that memory by `Cuda::take` (a slice of cudarc) or `Cuda::borrow` (an address).
//!
//! `cargo run --release --example 08_arrays_on_a_gpu`

use fmm::{Cuda, DeviceStream, Error, Fmm, Laplace, Outputs, Precision, demo};

fn main() -> Result<(), Error> {
    let cuda = Cuda::default();
    match cuda.info() {
        Err(Error::NoDevice { reason }) => {
            println!("no CUDA device: {reason}");
            return Ok(());
        }
        info => println!("{}", info?.name),
    }
    // Points may be f32 or f64. Charges are f32 here, and so are the sums.
    let n = 100_000;
    let points = cuda.array(&demo::points(demo::Demo::Uniform, n, 1))?;
    let wide = demo::strengths(n, 1, 1);
    let charges = cuda.array(&wide.iter().map(|&q| q as f32).collect::<Vec<f32>>())?;

    let stream = DeviceStream::Null;
    let mut plan = Fmm::new(Laplace)
        .backend(cuda)
        .precision(Precision::F32)
        .tolerance(1e-4)
        .outputs(Outputs::POTENTIAL | Outputs::GRADIENT)
        .plan_on_device(&points, None, &stream)?;

    // Ten evaluations are enqueued, and each overwrites `out`. `synchronize` waits for all of them.
    let out = plan.device_output::<f32>()?;
    for _ in 0..10 {
        plan.apply_on_device(&charges, &out, &stream)?;
    }
    plan.synchronize()?;
    let found = out.download::<f32>()?;
    // `verify` takes charges in memory of the host, and checks 500 targets.
    let error = plan.verify(&wide, 500)?.worst();
    println!("potential of the first point: {}; relative ℓ2 error {error:.1e}", found.potential[0]);
    assert!(error <= 1e-4);

    // The points move.
    let moved = cuda.array(&demo::points(demo::Demo::Uniform, n, 2))?;
    plan.set_points_on_device(&moved, None, &stream)?;
    plan.apply_on_device(&charges, &out, &stream)?;
    plan.synchronize()
}
