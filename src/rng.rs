//! A small seeded generator of random numbers (SplitMix64; Steele, Lea & Flood 2014). Demos and samples are the same on
//! every machine and in every version. `backend-cuda/kernels/shared/random.cuh` has the same generator for a GPU.

/// The state of the generator.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

/// What a call of [`bits`](Rng::bits) adds to the state.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl Rng {
    /// A generator with its own stream for each seed.
    pub(crate) fn new(seed: u64) -> Self {
        Rng(seed)
    }
    /// The generator after so many calls of [`bits`](Self::bits).
    pub(crate) fn after(self, calls: u64) -> Self {
        Rng(self.0.wrapping_add(STEP.wrapping_mul(calls)))
    }
    /// 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    /// Uniform in (0, 1), both ends excluded: one call of [`bits`](Self::bits).
    pub(crate) fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) * (-53f64).exp2()
    }
    /// Standard normal (Box–Muller).
    pub(crate) fn normal(&mut self) -> f64 {
        let r = (-2.0 * self.uniform().ln()).sqrt();
        r * (std::f64::consts::TAU * self.uniform()).cos()
    }
    /// Nearly standard normal, and ten times as fast as [`normal`](Self::normal): the number of ones among 64 random bits,
    /// spread evenly over its unit interval: two calls of [`bits`](Self::bits). Its mean is 0 and its variance 1. Its
    /// fourth moment is 2.97, that of a normal variable 3.
    pub(crate) fn binomial(&mut self) -> f64 {
        let ones = f64::from(self.bits().count_ones());
        (ones - 32.0 + self.uniform() - 0.5) / (16.0f64 + 1.0 / 12.0).sqrt()
    }
    /// Uniform in 0..n (n > 0); the bias is below n·2⁻⁶⁴.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((self.bits() as u128 * n as u128) >> 64) as usize
    }
    /// `count` distinct numbers of 0..n in increasing order, or all n if `count` is larger (Floyd's algorithm).
    pub(crate) fn sample(&mut self, n: usize, count: usize) -> Vec<usize> {
        if count >= n {
            return (0..n).collect();
        }
        let mut chosen = std::collections::BTreeSet::new();
        for j in n - count..n {
            let t = self.below(j + 1);
            if !chosen.insert(t) {
                chosen.insert(j);
            }
        }
        chosen.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generator_starts_anywhere_in_its_row() {
        for k in [0, 1, 3, 1000] {
            let (mut uniform, mut binomial) = (Rng::new(11), Rng::new(11));
            for _ in 0..k {
                uniform.uniform();
                binomial.binomial();
            }
            assert_eq!(Rng::new(11).after(k).bits(), uniform.bits());
            assert_eq!(Rng::new(11).after(2 * k).bits(), binomial.bits());
        }
    }

    #[test]
    fn samples_are_distinct_and_spread() {
        for (n, count) in [(10, 3), (10, 10), (10, 20), (1000, 999), (1, 1), (0, 5)] {
            let s = Rng::new(7).sample(n, count);
            assert_eq!(s.len(), count.min(n));
            assert!(s.windows(2).all(|w| w[0] < w[1]) && s.iter().all(|&i| i < n));
        }
        let s = Rng::new(3).sample(1_000_000, 1000);
        let mean = s.iter().sum::<usize>() as f64 / 1000.0;
        assert!((mean - 5e5).abs() < 5e4);
    }

    #[test]
    fn moments_of_the_generators() {
        let mut rng = Rng::new(1);
        let n = 100_000;
        let u: Vec<f64> = (0..n).map(|_| rng.uniform()).collect();
        let g: Vec<f64> = (0..n).map(|_| rng.normal()).collect();
        let b: Vec<f64> = (0..n).map(|_| rng.binomial()).collect();
        let mean = |x: &[f64]| x.iter().sum::<f64>() / n as f64;
        let square = |x: &[f64]| x.iter().map(|v| v * v).sum::<f64>() / n as f64;
        assert!((mean(&u) - 0.5).abs() < 0.005 && (square(&u) - 1.0 / 3.0).abs() < 0.005);
        assert!(mean(&g).abs() < 0.02 && (square(&g) - 1.0).abs() < 0.02);
        assert!(mean(&b).abs() < 0.02 && (square(&b) - 1.0).abs() < 0.02);
        let fourth = b.iter().map(|x| x.powi(4)).sum::<f64>() / n as f64;
        assert!((fourth - 2.97).abs() < 0.1, "{fourth}");
    }
}
