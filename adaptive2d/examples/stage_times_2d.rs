//! Seconds per stage on one thread:
//! `cargo run --release -p adaptive2d --example stage_times_2d -- N POPULATION [cloud]`

use adaptive2d::{ConnectOptions, Pyramid, PyramidOptions, connect};
use fmm_traits::testkit::plane::PlaneKind;
use std::time::Instant;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, default: usize| args.get(i).and_then(|s| s.parse().ok()).unwrap_or(default);
    let (n, population) = (number(1, 100_000), number(2, 40));
    let kind = PlaneKind::named(args.get(3).map_or("uniform", String::as_str)).expect("a cloud of the testkit");
    let points = kind.points(n, 1);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(number(4, 1)).build().expect("threads");
    pool.install(|| {
        for _ in 0..4 {
            let clock = Instant::now();
            let options = PyramidOptions { population: population as f64, depth: None };
            let pyramid = Pyramid::build(&points, None, &options).expect("pyramid");
            let built = clock.elapsed().as_secs_f64();
            let lists = connect(&pyramid, &ConnectOptions::default()).expect("lists");
            let connected = clock.elapsed().as_secs_f64() - built;
            println!(
                "depth {} pyramid {built:.3} connect {connected:.3} m2l {} p2p {} p2l {} m2p {}",
                pyramid.depth(),
                lists.m2l.len(),
                lists.p2p.len(),
                lists.p2l.len(),
                lists.m2p.len()
            );
        }
    });
}
