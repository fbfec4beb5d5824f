//! Pair rate of direct summation on one core: `cargo run --release -p backend-cpu --example pair_rate`.
use backend_cpu::{Isa, Pairs, direct_batch};
use fmm_kernels::Laplace;
use fmm_traits::testkit::clouds::{CloudKind, uniform_strengths};
use fmm_traits::{Kernels, Outputs, Precision, Targets};

fn main() {
    let n = 6000usize;
    let (x, q) = (CloudKind::Uniform.points(n, 1), uniform_strengths(n, 1));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| {
        for isa in Isa::available() {
            for p in [Precision::F64, Precision::F32] {
                for o in
                    [Outputs::POTENTIAL, Outputs::POTENTIAL | Outputs::GRADIENT, Outputs::POTENTIAL | Outputs::HESSIAN]
                {
                    let (kernels, pairs) = (Kernels::of(&Laplace, o).unwrap(), Pairs::of(&Laplace, o).unwrap());
                    let mut best = f64::MAX;
                    for _ in 0..3 {
                        let t = std::time::Instant::now();
                        std::hint::black_box(
                            direct_batch(&kernels, &pairs, &x, &[&q], Targets::Sources, p, isa).unwrap(),
                        );
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
