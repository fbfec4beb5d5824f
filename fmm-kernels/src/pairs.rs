//! Sums over pairs of points, one pair at a time: P2P of every expansion.

use fmm_traits::kernel::MAX_COMPONENTS;
use fmm_traits::{Cloud, Kernel, Real};

/// `values` += the field of `sources` at `targets`. With `same`, targets are the sources and target i skips source i.
pub(crate) fn add<K: Kernel, T: Real>(
    params: &[f64],
    sources: Cloud<T>,
    targets: &[[f64; 3]],
    same: bool,
    values: &mut [T],
) {
    let params: Vec<T> = params.iter().map(|&x| T::of(x)).collect();
    let mut u = [T::of(0.0); MAX_COMPONENTS];
    for (t, x) in targets.iter().enumerate() {
        for (s, y) in sources.xyz.iter().enumerate().filter(|&(s, _)| !same || s != t) {
            let r: [T; 3] = std::array::from_fn(|a| T::of(x[a] - y[a]));
            let q = &sources.strengths[s * K::STRENGTHS..(s + 1) * K::STRENGTHS];
            K::eval(&params, &r[..K::DIM], q, &mut u[..K::VALUES]);
            (0..K::VALUES).for_each(|i| values[t * K::VALUES + i] += u[i]);
        }
    }
}
