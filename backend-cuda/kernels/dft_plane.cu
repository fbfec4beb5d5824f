// Transforms between the numbers on the lattices of boxes of the plane and their spectra: dft.cu with one layer. A block
// has BOXES consecutive children of consecutive families, one per lane, and P warps.
//
// Defined in front of this file: REAL, P (the order), FILLED (1 if the lattice fills the square, 0 if it is a boundary),
// BOXES (per block: the lanes of a warp), THREADS (per block: BOXES · P).

#include "shared/lines.cuh"

#define POINTS (FILLED ? P * P - P % 2 : 4 * (P - 1))
#define FAMILY 4

// Spectra of densities of strength blockIdx.z, at the `held` frequencies ky from `first` on, one per warp.
// * Child i of the block is child i % FAMILY of family i / FAMILY - 1, of `families` families. Slot 0 is an extra family
//   without children, whose spectra are zero.
// * kids[family · 4 + octant]: box + 1, or 0. numbers[x · P + y]: number of a point, or more than any.
// * Plane of the spectra: (strength · held + ky - first) · SIDE + kx.
extern "C" __global__ void __launch_bounds__(THREADS)
    dft_forward(const REAL* densities, u32 row, const u32* kids, const u32* numbers, u32 first, u32 held, u32 shift,
                u32 families, Complex* spectra) {
  __shared__ Complex roots[SIDE];
  fill_roots(roots);
  __syncthreads();
  const u32 i = blockIdx.x * BOXES + threadIdx.x % BOXES, slot = i / FAMILY, octant = i % FAMILY;
  const u32 line = threadIdx.x / BOXES, ky = first + line, strength = blockIdx.z;
  if (slot > families || line >= held) return;
  const u32 box = slot == 0 ? 0 : kids[(u64)(slot - 1) * FAMILY + octant];
  const REAL* q = densities + (u64)(box == 0 ? 0 : box - 1) * row + strength * POINTS;
  Complex in[P];
#pragma unroll
  for (int x = 0; x < P; ++x) {
    in[x] = {0, 0};
    if (box == 0) continue;
    // A line inside the square has only its two ends on a boundary. The centre is on no lattice.
    const int far = FILLED || x == 0 || x == P - 1 ? 1 : P - 1;
    const u32 step = ky * far % SIDE;
    u32 at = 0;
    for (int y = 0; y < P; y += far) {
      const u32 number = numbers[x * P + y];
      const REAL value = !FILLED || number < POINTS ? q[number] : REAL(0);
      in[x].re += value * roots[at].re;
      in[x].im += value * roots[at].im;
      at += step;
      if (at >= SIDE) at -= SIDE;
    }
  }
  const u64 plane = ((u64)strength * held + line) * SIDE;
  Complex* to = spectra + ((plane << shift) + family_row(slot, gridDim.z * held * SIDE, shift)) * FAMILY + octant;
  forward(in, roots, [&](int kx, Complex sum) { to[(u64)(kx * FAMILY) << shift] = sum; });
}

// Check values of component blockIdx.z from spectra, added to rows of `out`, for the `held` frequencies ky from `first`
// on. A warp has the points of one x.
extern "C" __global__ void __launch_bounds__(THREADS)
    dft_inverse(const Complex* spectra, const u32* kids, const u32* numbers, u32 first, u32 held, u32 shift,
                u32 families, REAL* out, u32 row) {
  __shared__ Complex roots[SIDE];
  fill_roots(roots);
  __syncthreads();
  const u32 i = blockIdx.x * BOXES + threadIdx.x % BOXES, family = i / FAMILY, octant = i % FAMILY;
  const u32 x = threadIdx.x / BOXES, value = blockIdx.z;
  const u32 box = family < families ? kids[(u64)family * FAMILY + octant] : 0;
  if (box == 0) return;
  const u64 plane = (u64)value * held * SIDE;
  const Complex* from = spectra + ((plane << shift) + family_row(family, gridDim.z * held * SIDE, shift)) * FAMILY + octant;
  REAL field[P] = {};
  for (u32 line = 0; line < held; ++line) {
    Complex u = {0, 0};
    u32 at = 0;
    for (int kx = 0; kx < SIDE; ++kx) {
      const Complex a = from[(u64)((line * SIDE + kx) * FAMILY) << shift], w = roots[at];
      u.re += a.re * w.re + a.im * w.im;
      u.im += a.im * w.re - a.re * w.im;
      at += x;
      if (at >= SIDE) at -= SIDE;
    }
    const u32 ky = first + line;
    // Frequencies in the upper half are conjugates of those in the lower half, hence the factor 2.
    const REAL twice = ky == 0 ? REAL(1) : REAL(2);
    at = 0;
#pragma unroll
    for (int y = 0; y < P; ++y) {
      field[y] += twice * (u.re * roots[at].re + u.im * roots[at].im);
      at += ky;
      if (at >= SIDE) at -= SIDE;
    }
  }
  REAL* to = out + (u64)(box - 1) * row + value * POINTS;
#pragma unroll
  for (int y = 0; y < P; ++y) {
    const u32 number = numbers[x * P + y];
    if (number < POINTS) to[number] += field[y];
  }
}
