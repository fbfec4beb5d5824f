//! A kernel that is not fully inlined into the pair sum calls a function for each vector operation, and its rate is
//! twenty times too low. The test reads a clock and is ignored: `scripts/timing-tests.sh`.

use super::*;
use fmm_kernels::{Gravity, Laplace, LaplaceDipole, LaplaceMixed, Stokes, StokesPressure, Stresslet, Yukawa};
use std::time::Instant;

/// The shortest time of five direct sums, in seconds.
fn seconds<F: Known>(family: &F, precision: Precision) -> f64 {
    let points = uniform(1500, 1);
    let q = strengths::<F>(&points);
    let once = |_| {
        let start = Instant::now();
        direct(family, Outputs::POTENTIAL, &points, &q, Targets::Sources, precision, Isa::detect()).unwrap();
        start.elapsed().as_secs_f64()
    };
    (0..5).map(once).fold(f64::INFINITY, f64::min)
}

#[test]
#[ignore = "a clock: scripts/timing-tests.sh"]
fn every_kernel_is_inlined() {
    for precision in [Precision::F32, Precision::F64] {
        let laplace = seconds(&Laplace, precision);
        let others = [
            ("dipole", seconds(&LaplaceDipole, precision)),
            ("mixed", seconds(&LaplaceMixed, precision)),
            ("yukawa", seconds(&Yukawa { kappa: 1.0 }, precision)),
            ("gravity", seconds(&Gravity { g: 1.0, softening: 0.1 }, precision)),
            ("stokes", seconds(&Stokes { mu: 1.0 }, precision)),
            ("stokes_pressure", seconds(&StokesPressure { mu: 1.0 }, precision)),
            ("stresslet", seconds(&Stresslet { mu: 1.0 }, precision)),
        ];
        for (name, time) in others {
            println!("{name} {}: {:.2} times Laplace", precision.name(), time / laplace);
            assert!(time < 10.0 * laplace, "{name} {}: {} times Laplace", precision.name(), time / laplace);
        }
    }
}
