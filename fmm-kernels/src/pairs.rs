//! Sums over pairs of points, one pair at a time: P2P of every expansion.

use fmm_traits::{Cloud, Kernels, Real};

/// `values` += the field of `sources` at `targets`. With `same`, targets are the sources and target i skips source i.
pub(crate) fn add<T: Real>(kernels: &Kernels, sources: Cloud<T>, targets: &[[f64; 3]], same: bool, values: &mut [T]) {
    let kernel = &kernels.near;
    let mut u = vec![0.0; kernel.values];
    for (s, (y, q)) in sources.xyz.iter().zip(sources.strengths.chunks_exact(kernel.strengths)).enumerate() {
        let q: Vec<f64> = q.iter().map(|q| q.f64()).collect();
        let of_target =
            |(t, x): (usize, &[f64; 3])| (!same || s != t).then(|| (t, std::array::from_fn(|a| x[a] - y[a])));
        for (t, r) in targets.iter().enumerate().filter_map(of_target) {
            let r: [f64; 3] = r;
            kernel.eval(&kernels.params, &r, &q, &mut u);
            values[t * kernel.values..].iter_mut().zip(&u).for_each(|(to, &u)| *to += T::of(u));
        }
    }
}
