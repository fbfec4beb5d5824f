//! Seconds to build the tree and its lists: `tree_timing [points] [cloud] [threads] [ncrit]`.

use fmm_traits::testkit::clouds::CloudKind;
use fmm_tree::{BuildOptions, ListOptions, build_reported, uvwx};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| arguments.get(i).map(|a| a.parse::<usize>()).transpose();
    let n = number(0)?.unwrap_or(1_000_000);
    let name = arguments.get(1).map_or("uniform", |s| s);
    let kind = CloudKind::named(name).ok_or("unknown cloud")?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(number(2)?.unwrap_or(0)).build()?;
    let options = BuildOptions { ncrit: number(3)?, ..Default::default() };
    let points = kind.points(n, 1);
    for _ in 0..3 {
        let start = Instant::now();
        let (tree, report) = pool.install(|| build_reported(&points, None, &options))?;
        let built = start.elapsed().as_secs_f64();
        let lists = pool.install(|| uvwx(&tree, &ListOptions::default()))?;
        let listed = start.elapsed().as_secs_f64() - built;
        println!(
            "{n} {name}: build {built:.3} s, lists {listed:.3} s, {} boxes, {} leaves, {} levels, {:.1} points a leaf, \
             ncrit {}, root stretched {:.3}×, tree {} MB, lists {} MB",
            tree.len(),
            tree.leaves(),
            tree.levels(),
            report.mean_leaf,
            report.ncrit,
            report.root_stretch,
            tree.bytes() / 1_000_000,
            lists.bytes() / 1_000_000,
        );
        println!("    {}", lists.kinds().map(|(k, e)| format!("{k} {}", e.len())).join(", "));
    }
    Ok(())
}
