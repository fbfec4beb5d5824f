//! Pair rate of direct summation on one core: `cargo run --release -p backend-cpu --example pair_rate`.
use backend_cpu::{Isa, Precision, Targets, direct};
use fmm_kernels::Laplace;
use fmm_traits::Outputs;

fn main() {
    let n = 6000usize;
    let mut s = 1u64;
    let mut rnd = || {
        s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (s >> 11) as f64 / (1u64 << 53) as f64
    };
    let x: Vec<f64> = (0..3 * n).map(|_| rnd()).collect();
    let q: Vec<f64> = (0..n).map(|_| rnd()).collect();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| {
        for isa in Isa::available() {
            for p in [Precision::F64, Precision::F32] {
                for o in
                    [Outputs::POTENTIAL, Outputs::POTENTIAL | Outputs::GRADIENT, Outputs::POTENTIAL | Outputs::HESSIAN]
                {
                    let mut best = f64::MAX;
                    for _ in 0..3 {
                        let t = std::time::Instant::now();
                        std::hint::black_box(direct(&Laplace, o, &x, &q, Targets::Sources(None), p, isa).unwrap());
                        best = best.min(t.elapsed().as_secs_f64());
                    }
                    println!(
                        "{} {} {:?} {:.3} Gpairs/s",
                        isa.name(),
                        p.name(),
                        o.names(),
                        (n * n) as f64 / best * 1e-9
                    );
                }
            }
        }
    });
}
