//! Translations per second of M2L in spherical harmonics on one thread, all 32³ boxes of a level and those above them:
//! `cargo run --release -p backend-cpu --example spherical_m2l_rate -- [orders]`.

use backend_cpu::Isa;
use backend_cpu::spherical::SphericalM2l;
use fmm_kernels::spherical::Truncation;
use fmm_traits::{Real, Tree};
use fmm_tree::{ListOptions, build_uniform, stencil119, uvwx};
use std::time::Instant;

fn main() {
    let given: Vec<usize> = std::env::args().skip(1).filter_map(|p| p.parse().ok()).collect();
    let orders = if given.is_empty() { vec![4, 8, 12, 16] } else { given };
    let at = |i: usize| [i % 32, i / 32 % 32, i / 1024].map(|k| (k as f64 + 0.5) / 32.0);
    let points: Vec<f64> = (0..32768).flat_map(at).collect();
    let tree = build_uniform(&points, None, 5, Some(([0.0; 3], 1.0))).expect("tree");
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("threads");
    pool.install(|| {
        for isa in Isa::available() {
            for &p in &orders {
                rate::<f64>(&tree, p, isa);
                rate::<f32>(&tree, p, isa);
            }
        }
    });
}

fn rate<T: Real>(tree: &Tree, p: usize, isa: Isa) {
    let multipoles: Vec<T> = (0..tree.len() * p * p).map(|i| T::of((i as f64).sin())).collect();
    let mut locals = vec![T::of(0.0); tree.len() * p * p];
    let mut text = String::new();
    for (name, lists) in
        [("uvwx", uvwx(tree, &ListOptions::default())), ("119", stencil119(tree, &ListOptions::default()))]
    {
        let edges = lists.expect("lists").m2l;
        for truncation in [Truncation::Fixed, Truncation::Variable] {
            let m2l = SphericalM2l::new(tree, &edges, p, truncation, isa);
            let mut best = f64::INFINITY;
            for _ in 0..3 {
                let clock = Instant::now();
                m2l.apply(&multipoles, &mut locals);
                best = best.min(clock.elapsed().as_secs_f64());
            }
            let rate = edges.len() as f64 / best * 1e-6;
            text += &format!(" | {name} {truncation:?} {best:.3} s, {rate:.1} M/s");
        }
    }
    println!("{} {} order {p}{text}", isa.name(), T::NAME);
}
