//! Lashuk et al. 2009, Table III: points per box on one GPU, our rows beside those of a Tesla S1070.

use crate::measure::{Cloud, Leaves, Method, Seen};
use backend_cuda::Device;
use fmm_traits::{Error, Outputs, Stage};

/// Points per box; seconds of all, upward pass, U list, V list, downward pass.
const TABLE3: [(usize, [f64; 5]); 3] =
    [(30, [5.13, 0.58, 0.29, 3.76, 0.35]), (244, [1.17, 0.13, 0.45, 0.44, 0.1]), (1953, [2.15, 0.07, 1.9, 0.06, 0.07])];
/// The paper does not say its accuracy; this order gives an error of about 1e-6.
const ORDER: usize = 6;

/// Table III for `n` uniform points, and leaves of other sizes.
pub fn table(device: &Device, method: Method, n: usize) -> Result<(), Error> {
    println!("{}, Laplace potential of {n} uniform points, single precision, {}", device.info().name, method.name());
    println!("order {ORDER}; against one GPU of a Tesla S1070, 1 M points; seconds\n");
    println!("{:<36}     total    upward    U list    V list  downward    error  tree+lists", "points per box");
    let cloud = Cloud::new(device, n, false);
    let measure = |leaves| cloud.measure(method, Outputs::POTENTIAL, ORDER, leaves);
    for (points, seconds) in TABLE3 {
        println!("{:<36}{}", format!("{points}: theirs"), cells(seconds));
        // Theirs are full leaves of the octree of the unit cube.
        let level = (n as f64 / points as f64).log2() / 3.0;
        show("  ours", &measure(Leaves::Level(level.round() as i32))?);
    }
    for leaf in [45.0, 60.0, 75.0, 90.0, 128.0] {
        show(&format!("{leaf}: ours, another root"), &measure(Leaves::Holding(leaf))?);
    }
    Ok(())
}

fn cells(seconds: [f64; 5]) -> String {
    seconds.iter().map(|s| format!(" {s:>9.2e}")).collect()
}

fn show(name: &str, seen: &Seen) {
    let name = format!("{name}, {} boxes", seen.boxes);
    let seconds = [
        seen.apply,
        seen.sum(&[Stage::P2m, Stage::M2m]),
        seen.sum(&[Stage::P2p]),
        seen.sum(&[Stage::M2l]),
        seen.sum(&[Stage::L2l, Stage::L2p]),
    ];
    println!("{name:<36}{} {:>8.1e}   {:>9.2e}", cells(seconds), seen.errors[0], seen.prepared);
}
