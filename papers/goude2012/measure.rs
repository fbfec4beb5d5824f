//! What the experiments of Goude & Engblom (2012) have in common: clouds, and an evaluation on the CPU.

use adaptive2d::{ConnectOptions, Pyramid, PyramidOptions, connect};
use backend_cpu::Isa;
use backend_cpu::laurent::{LaurentPlan, LaurentWorkspace};
use fmm_kernels::Harmonic2d;
use fmm_traits::Stage;
use fmm_traits::testkit::clouds::Generator;
use std::time::Instant;

/// θ of the paper.
pub const THETA: f64 = 0.5;
/// Coefficients for 1e-6, as in the paper.
pub const P: usize = 17;

/// Points of fig. 5.8, with another standard deviation than 1/10 in fig. 5.9.
#[derive(Clone, Copy)]
pub enum Cloud {
    Uniform,
    Normal(f64),
    Layer(f64),
}

impl Cloud {
    /// `n` points, rejected to the unit square.
    pub fn points(self, n: usize) -> Vec<f64> {
        let mut g = Generator::new(1);
        let normal = |g: &mut Generator, sigma: f64| loop {
            let x = 0.5 + sigma * g.normal();
            if (0.0..=1.0).contains(&x) {
                return x;
            }
        };
        let point = |_| match self {
            Cloud::Uniform => [g.uniform(), g.uniform()],
            Cloud::Normal(sigma) => [normal(&mut g, sigma), normal(&mut g, sigma)],
            Cloud::Layer(sigma) => [g.uniform(), normal(&mut g, sigma)],
        };
        (0..n).flat_map(point).collect()
    }
}

/// Seconds of one evaluation.
#[derive(Clone, Copy, Default)]
pub struct Seconds {
    pub total: f64,
    pub pyramid: f64,
    pub connect: f64,
    pub stages: [f64; Stage::ALL.len()],
}

impl Seconds {
    /// Of `stage`, in % of the total.
    pub fn share(&self, stage: Stage) -> f64 {
        100.0 * self.stages[stage as usize] / self.total
    }
    /// Prints Table 5.1: the share of each part, beside the paper's on its GPU.
    pub fn print_shares(&self) {
        println!("| part | here, % | paper (GPU), % |\n|---|---|---|");
        let topological = [("sort (pyramid)", self.pyramid, "30"), ("connect", self.connect, "1")];
        for (part, seconds, paper) in topological {
            println!("| {part} | {:.1} | {paper} |", 100.0 * seconds / self.total);
        }
        let stages = [
            (Stage::P2p, "43"),
            (Stage::M2l, "11"),
            (Stage::P2m, "5"),
            (Stage::L2p, "2"),
            (Stage::M2m, "< 1"),
            (Stage::L2l, "< 1"),
        ];
        for (stage, paper) in stages {
            println!("| {} | {:.1} | {paper} |", stage.name(), self.share(stage));
        }
        let named: f64 = stages.iter().map(|(stage, _)| self.share(*stage)).sum();
        println!("| other | {:.1} | 8 |", 100.0 * (1.0 - (self.pyramid + self.connect) / self.total) - named);
    }
}

/// One evaluation at `points` and depth `depth` of the pyramid.
pub fn evaluation(points: &[f64], strengths: &[f64], depth: usize, order: usize) -> Seconds {
    let start = Instant::now();
    let options = PyramidOptions { population: 1.0, depth: Some(depth) };
    let pyramid = Pyramid::build(points, None, &options).expect("pyramid");
    let built = start.elapsed().as_secs_f64();
    let lists = connect(&pyramid, &ConnectOptions { theta: THETA, ..Default::default() }).expect("lists");
    let connected = start.elapsed().as_secs_f64();
    let rough = order <= 24;
    let plan = LaurentPlan::new(Harmonic2d, (order, 0), pyramid, lists, Isa::detect(), rough).expect("plan");
    let plan = plan.shortened(THETA);
    let mut out = vec![0.0; points.len() / 2 * plan.values()];
    let stages = plan.apply(&mut LaurentWorkspace::default(), strengths, &mut out, &mut |_, _| true).expect("sums");
    Seconds { total: start.elapsed().as_secs_f64(), pyramid: built, connect: connected - built, stages }
}

/// The run of median total among `runs`.
pub fn median(runs: usize, mut run: impl FnMut() -> Seconds) -> Seconds {
    let mut runs: Vec<Seconds> = (0..runs).map(|_| run()).collect();
    runs.sort_by(|a, b| a.total.total_cmp(&b.total));
    runs[runs.len() / 2]
}
