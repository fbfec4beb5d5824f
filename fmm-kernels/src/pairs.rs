//! Sums over pairs of points, one pair at a time: P2P of every expansion.

use fmm_traits::{Cloud, Kernels, Real};

/// `values` += the field of `sources` at `targets`. With `same`, targets are the sources and target i skips source i.
pub(crate) fn add<T: Real>(kernels: &Kernels, sources: Cloud<T>, targets: &[[f64; 3]], same: bool, values: &mut [T]) {
    let kernel = &kernels.near;
    let mut u = vec![0.0; kernel.values];
    for (s, (y, q)) in sources.xyz.iter().zip(sources.strengths.chunks_exact(kernel.strengths)).enumerate() {
        let q: Vec<f64> = q.iter().map(|q| q.f64()).collect();
        for (t, (x, values)) in targets.iter().zip(values.chunks_exact_mut(kernel.values)).enumerate() {
            if same && s == t {
                continue;
            }
            let r: [f64; 3] = std::array::from_fn(|a| x[a] - y[a]);
            kernel.eval(&kernels.params, &r, &q, &mut u);
            values.iter_mut().zip(&u).for_each(|(to, &u)| *to += T::of(u));
        }
    }
}
