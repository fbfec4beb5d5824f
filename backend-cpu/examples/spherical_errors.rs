//! Relative errors in spherical harmonics by order, of potential and gradient, for normal strengths and for uniform ones
//! in (0, 1): `cargo run --release -p backend-cpu --example spherical_errors -- [dipole]`
//!
//! 512 leaves of 60 uniform sources, interactions on levels 2 and 3, targets in three leaves.

use backend_cpu::pairwise::Pairwise;
use fmm_kernels::spherical::{MAX_ORDER, SphericalExpansion, SphericalOptions, Translation, Truncation};
use fmm_kernels::{Laplace, LaplaceDipole};
use fmm_traits::testkit::clouds::{CloudKind, normal_strengths, uniform_strengths};
use fmm_traits::{Cloud, Expansion, Family, Gradient, Kernel, Lists, OutputError, Outputs, Real, Tree};
use fmm_tree::{ListOptions, build_uniform, uvwx};

type Spherical<F, T> = SphericalExpansion<F, T, Gradient<<F as Family>::Source>, Gradient<Laplace>>;

/// Sources, targets, and the two strengths with the direct sums.
struct Case {
    tree: Tree,
    lists: Lists,
    strengths: [Vec<f64>; 2],
    direct: [Vec<f64>; 2],
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("dipole") => table(&LaplaceDipole),
        _ => table(&Laplace),
    }
}

fn table<F: Family>(family: &F) {
    let case = Case::new(family);
    println!(" p | fixed | variable | eq. 24 | variable, f32");
    for p in 1..=MAX_ORDER {
        let f64s = [Truncation::Fixed, Truncation::Variable, Truncation::Bound]
            .map(|truncation| case.errors::<F, f64>(family, p, truncation));
        println!("{p:2} | {} | {}", f64s.join(" | "), case.errors::<F, f32>(family, p, Truncation::Variable));
    }
}

impl Case {
    fn new<F: Family>(family: &F) -> Case {
        let n = 512 * 60;
        let points = CloudKind::Uniform.points(n, 1);
        // Three leaves: in a corner, in the middle, on a face.
        let corners = [[0.0, 0.0, 0.0], [0.375, 0.5, 0.5], [0.0, 0.25, 0.625]];
        let leaf = |(corner, seed): ([f64; 3], u64)| {
            let inside = CloudKind::Uniform.points(60, seed);
            inside.iter().enumerate().map(|(i, x)| corner[i % 3] + 0.125 * x).collect::<Vec<_>>()
        };
        let targets: Vec<f64> = corners.into_iter().zip(2..).flat_map(leaf).collect();
        let tree = build_uniform(&points, Some(&targets), 3, Some(([0.0; 3], 1.0))).expect("tree");
        let lists = uvwx(&tree, &ListOptions::default()).expect("lists");
        let components = F::Source::STRENGTHS;
        let strengths = [normal_strengths(n * components, 1), uniform_strengths(n * components, 1)];
        let exact = Spherical::<F, f64>::new(family, 1, SphericalOptions::default()).expect("order");
        let direct = strengths.each_ref().map(|strengths| {
            let mut sums = vec![0.0; targets.len() / 3 * 4];
            let sources = Cloud { xyz: points.as_chunks::<3>().0, strengths };
            exact.p2p(sources, targets.as_chunks::<3>().0, false, &mut sums);
            sums
        });
        Case { tree, lists, strengths, direct }
    }

    fn errors<F: Family, T: Real>(&self, family: &F, p: usize, truncation: Truncation) -> String {
        let options = SphericalOptions { translation: Translation::Rcr, truncation };
        let x = Spherical::<F, T>::new(family, p, options).expect("order");
        let mut run = Pairwise::new(&self.tree, &self.lists, &x).expect("admissible");
        let part = |v: &[f64], from: usize, to: usize| -> Vec<f64> {
            v.chunks_exact(4).flat_map(|row| row[from..to].to_vec()).collect()
        };
        let mut text = Vec::new();
        for (strengths, direct) in self.strengths.iter().zip(&self.direct) {
            let found = run.apply(strengths, &mut |_, _| true).expect("sums");
            for (output, from, to) in [(Outputs::POTENTIAL, 0, 1), (Outputs::GRADIENT, 1, 4)] {
                let e = OutputError::of(output, &part(&found, from, to), &part(direct, from, to), to - from);
                text.push(format!("{:7.1e}", e.rel_l2));
            }
        }
        text.join(" ")
    }
}
