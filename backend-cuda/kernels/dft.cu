// Transforms between the numbers on the surfaces of the children of a box and their spectra, by plain sums axis by
// axis: an axis has 2P - 1 frequencies, of any factors, and P points. Twin of backend-cpu/src/equivalent/dft.rs;
// conventions as in fmm-kernels/src/equivalent/spectra.rs.
//
// In front of this file: REAL, P (the order), BOXES (children of a block: 8 or 4).

#include "shared/complex.cuh"

#define SIDE (2 * P - 1)
#define POINTS (6 * (P - 1) * (P - 1) + 2)
#define THREADS 128
#define FAMILY 8

// e^(-2πi j / SIDE).
__device__ void fill_roots(Complex* roots) {
  for (int j = threadIdx.x; j < SIDE; j += THREADS) {
    double s, c;
    sincospi(2.0 * j / SIDE, &s, &c);
    roots[j] = {(REAL)c, (REAL)-s};
  }
}

// The sum over an axis of P entries, `stride` apart, at one of its frequencies.
__device__ __forceinline__ Complex along(const Complex (*in)[BOXES], u32 stride, int frequency, u32 box,
                                         const Complex* roots) {
  Complex sum = {0, 0};
  int at = 0;
#pragma unroll
  for (int i = 0; i < P; ++i) {
    add_times(sum, in[i * stride][box], roots[at]);
    at += frequency;
    if (at >= SIDE) at -= SIDE;
  }
  return sum;
}

// Spectra of densities at frequency kz = first + blockIdx.y, of gridDim.y that are held at a time, of strength blockIdx.z. A
// block: BOXES of the children of family blockIdx.x / (FAMILY / BOXES) - 1; before the first family comes one without
// children. kids[family · 8 + octant]: box + 1, or 0; numbers[(x · P + y) · P + z]: the number of a point.
// spectra[((strength · gridDim.y + blockIdx.y) · SIDE + kx) · SIDE + ky][families + 1][octant].
extern "C" __global__ void __launch_bounds__(THREADS)
    dft_forward(const REAL* densities, u32 row, const u32* kids, u32 families, const u32* numbers, u32 first,
                Complex* spectra) {
  __shared__ Complex roots[SIDE], a[P * P][BOXES], b[P * SIDE][BOXES];
  __shared__ u32 boxes[BOXES];
  const u32 parts = FAMILY / BOXES, slot = blockIdx.x / parts, octant = blockIdx.x % parts * BOXES;
  const u32 kz = first + blockIdx.y, strength = blockIdx.z;
  fill_roots(roots);
  if (threadIdx.x < BOXES) boxes[threadIdx.x] = slot == 0 ? 0 : kids[(u64)(slot - 1) * FAMILY + octant + threadIdx.x];
  __syncthreads();
  const u32 box = threadIdx.x % BOXES;
  const REAL* q = densities + (u64)(boxes[box] == 0 ? 0 : boxes[box] - 1) * row + strength * POINTS;
  for (int i = threadIdx.x / BOXES; i < P * P; i += THREADS / BOXES) {
    Complex sum = {0, 0};
    if (boxes[box] != 0) {
      // Of a column inside the cube only the ends are on the surface.
      const int x = i / P, y = i % P;
      const int far = x == 0 || x == P - 1 || y == 0 || y == P - 1 ? 1 : P - 1;
      const u32 step = kz * far % SIDE;
      u32 at = 0;
      for (int z = 0; z < P; z += far) {
        const REAL value = q[numbers[i * P + z]];
        sum.re += value * roots[at].re;
        sum.im += value * roots[at].im;
        at += step;
        if (at >= SIDE) at -= SIDE;
      }
    }
    a[i][box] = sum;
  }
  __syncthreads();
  for (int i = threadIdx.x / BOXES; i < P * SIDE; i += THREADS / BOXES)
    b[i][box] = along(a + i / SIDE * P, 1, i % SIDE, box, roots);
  __syncthreads();
  for (int i = threadIdx.x / BOXES; i < SIDE * SIDE; i += THREADS / BOXES) {
    const u64 k = ((u64)strength * gridDim.y + blockIdx.y) * SIDE * SIDE + i;
    spectra[(k * (families + 1) + slot) * FAMILY + octant + box] = along(b + i % SIDE, SIDE, i / SIDE, box, roots);
  }
}

// From spectra of check values, at frequencies kz from `first` on of which `held` are there, to the check values of
// component blockIdx.z, added to rows of `out`. A block: BOXES of the children of family blockIdx.x / (FAMILY / BOXES). spectra[…][families][octant]; lattice: x, y, z of each
// point in three bytes.
extern "C" __global__ void __launch_bounds__(THREADS)
    dft_inverse(const Complex* spectra, u32 families, const u32* kids, const u32* lattice, u32 first, u32 held, REAL* out,
                u32 row) {
  __shared__ Complex roots[SIDE], a[P * P][BOXES], b[P * SIDE][BOXES];
  __shared__ u32 boxes[BOXES];
  const u32 parts = FAMILY / BOXES, family = blockIdx.x / parts, octant = blockIdx.x % parts * BOXES;
  const u32 value = blockIdx.z;
  fill_roots(roots);
  if (threadIdx.x < BOXES) boxes[threadIdx.x] = kids[(u64)family * FAMILY + octant + threadIdx.x];
  const u32 box = threadIdx.x % BOXES;
  const u64 stride = (u64)families * FAMILY;
  const Complex* from = spectra + (u64)value * SIDE * SIDE * held * stride + (u64)family * FAMILY + octant + box;
  constexpr int EACH = (POINTS * BOXES + THREADS - 1) / THREADS;
  REAL field[EACH];
#pragma unroll
  for (int i = 0; i < EACH; ++i) field[i] = 0;
  __syncthreads();
  for (u32 at_kz = 0; at_kz < held; ++at_kz) {
    const u32 kz = first + at_kz;
    for (int ky = threadIdx.x / BOXES; ky < SIDE; ky += THREADS / BOXES) {
      Complex sum[P];
#pragma unroll
      for (int x = 0; x < P; ++x) sum[x] = {0, 0};
#pragma unroll 4
      for (int kx = 0; kx < SIDE; ++kx) {
        const Complex u = from[((u64)(at_kz * SIDE + kx) * SIDE + ky) * stride];
        int at = 0;
#pragma unroll
        for (int x = 0; x < P; ++x) {
          add_times_conjugate(sum[x], u, roots[at]);
          at += kx;
          if (at >= SIDE) at -= SIDE;
        }
      }
#pragma unroll
      for (int x = 0; x < P; ++x) b[x * SIDE + ky][box] = sum[x];
    }
    __syncthreads();
    for (int i = threadIdx.x / BOXES; i < P * P; i += THREADS / BOXES) {
      const int x = i / P, y = i % P;
      Complex sum = {0, 0};
      int at = 0;
#pragma unroll 4
      for (int ky = 0; ky < SIDE; ++ky) {
        add_times_conjugate(sum, b[x * SIDE + ky][box], roots[at]);
        at += y;
        if (at >= SIDE) at -= SIDE;
      }
      a[i][box] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const int point = threadIdx.x / BOXES + i * (THREADS / BOXES);
      if (point >= POINTS) continue;
      const u32 c = lattice[point], x = c & 255, y = c >> 8 & 255, z = c >> 16;
      const Complex u = a[x * P + y][box], w = roots[kz * z % SIDE];
      // The frequencies above the half are the conjugates of those below.
      field[i] += (kz == 0 ? REAL(1) : REAL(2)) * (u.re * w.re + u.im * w.im);
    }
  }
  if (boxes[box] == 0) return;
  REAL* to = out + (u64)(boxes[box] - 1) * row + value * POINTS;
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int point = threadIdx.x / BOXES + i * (THREADS / BOXES);
    if (point < POINTS) to[point] += field[i];
  }
}
