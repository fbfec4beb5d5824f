// A generator of random numbers, SplitMix64 (Steele, Lea & Flood 2014). Twin of src/rng.rs in the crate fmm.
#pragma once

#include "shared/warp.cuh"

struct Rng {
  // What a call of `bits` adds to the state.
  static constexpr u64 STEP = 0x9E3779B97F4A7C15ull;
  u64 state;
  // The generator with a seed, after so many calls of `bits`.
  __device__ Rng(u64 seed, u64 calls) : state(seed + STEP * calls) {}
  // 64 random bits.
  __device__ u64 bits() {
    state += STEP;
    u64 z = state;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
  }
  // Uniform in (0, 1): one call of `bits`.
  __device__ double uniform() { return ((double)(bits() >> 11) + 0.5) * 0x1p-53; }
  // Nearly standard normal: two calls of `bits`.
  __device__ double binomial() {
    const double ones = (double)__popcll(bits());
    return (ones - 32.0 + uniform() - 0.5) / sqrt(16.0 + 1.0 / 12.0);
  }
};
