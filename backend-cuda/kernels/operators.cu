// Operators of a unit box: the matrices of the equivalent kernel between two sets of points, which are M2M, M2L and L2L,
// and the spectra of M2L, by plain sums axis by axis. Conventions of spectra as in
// fmm-kernels/src/equivalent/spectra.rs.
//
// Defined in front of this file: REAL, STRENGTHS, VALUES, P (the order), DIM, THREADS (per block), and `bare_pair` in f64.

#include "shared/real.cuh"
#include "shared/warp.cuh"

// Entry (row, column) of matrix o is at (o · columns + column) · rows + row. Rows and columns are ordered component by
// component. targets, sources: n points each, all x, then y, then z. offsets: what is added to target minus source in
// matrix o. factors: of each value, then of each strength.
extern "C" __global__ void kernel_matrices(const double* parameters, const double* targets, const double* sources,
                                           u32 n, const double* offsets, u32 count, const double* factors, REAL* out) {
  const u64 rows = (u64)VALUES * n, columns = (u64)STRENGTHS * n;
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  const u32 t = i % n, column = i / n % columns, o = i / n / columns;
  if (o >= count) return;
  const u32 s = column % n, strength = column / n;
  double q[STRENGTHS], u[VALUES];
#pragma unroll
  for (int c = 0; c < STRENGTHS; ++c) q[c] = c == strength;
  double r[3];
  for (int a = 0; a < 3; ++a) r[a] = targets[a * n + t] - sources[a * n + s] + offsets[3 * o + a];
  bare_pair(parameters, r[0], r[1], r[2], q, u);
  const double factor = factors[VALUES + strength];
#pragma unroll
  for (int k = 0; k < VALUES; ++k)
    out[(o * columns + column) * rows + (u64)k * n + t] = (REAL)(factors[k] * factor * u[k]);
}

#define SIDE (2 * P - 1)
// Lines of the grid along its innermost axis. In the plane, the outermost axis z has one layer.
#define LAYERS (DIM == 3 ? SIDE : 1)
#define LINES (LAYERS * SIDE)

struct Wide {
  double re, im;
};
struct Entry {
  REAL re, im;
};

// The difference of lattice coordinates for a periodic index.
__device__ __forceinline__ double difference(int i) { return i < P ? i : i - SIDE; }

__device__ __forceinline__ void add_product(Wide& sum, Wide x, Wide w) {
  sum.re += x.re * w.re - x.im * w.im;
  sum.im += x.re * w.im + x.im * w.re;
}

// The spectra, with an entry for each frequency (the innermost axis slowest), value, strength and offset. A block has
// offset blockIdx.x, frequency blockIdx.y along the innermost axis, and pair blockIdx.z of value and strength.
extern "C" __global__ void __launch_bounds__(THREADS)
    kernel_spectra(const double* parameters, const double* offsets, double spacing, double scale, Entry* out) {
  __shared__ Wide roots[SIDE], a[LINES], b[LINES];
  const u32 value = blockIdx.z / STRENGTHS, strength = blockIdx.z % STRENGTHS;
  const double* offset = offsets + 3 * blockIdx.x;
  for (int j = threadIdx.x; j < SIDE; j += THREADS) {
    double s, c;
    sincospi(2.0 * j / SIDE, &s, &c);
    roots[j] = {c, -s};
  }
  __syncthreads();
  double q[STRENGTHS], u[VALUES];
#pragma unroll
  for (int c = 0; c < STRENGTHS; ++c) q[c] = c == strength;
  for (int line = threadIdx.x; line < LINES; line += THREADS) {
    const double outer = difference(line / SIDE), middle = difference(line % SIDE);
    Wide sum = {0, 0};
    u32 at = 0;
    // The kernel may be long, and is compiled once.
#pragma unroll 1
    for (int i = 0; i < SIDE; ++i) {
      const double inner = difference(i);
      const double x = DIM == 3 ? outer : middle, y = DIM == 3 ? middle : inner, z = DIM == 3 ? inner : outer;
      bare_pair(parameters, offset[0] + spacing * x, offset[1] + spacing * y, offset[2] + spacing * z, q, u);
      double here = 0;
#pragma unroll
      for (int k = 0; k < VALUES; ++k) here = k == value ? u[k] : here;
      add_product(sum, {scale * here, 0}, roots[at]);
      at += blockIdx.y;
      if (at >= SIDE) at -= SIDE;
    }
    a[line] = sum;
  }
  __syncthreads();
  for (int line = threadIdx.x; line < LINES; line += THREADS) {
    Wide sum = {0, 0};
    for (int i = 0; i < SIDE; ++i) add_product(sum, a[line / SIDE * SIDE + i], roots[line % SIDE * i % SIDE]);
    b[line] = sum;
  }
  __syncthreads();
  for (int line = threadIdx.x; line < LINES; line += THREADS) {
    Wide sum = {0, 0};
    for (int i = 0; i < LAYERS; ++i) add_product(sum, b[i * SIDE + line % SIDE], roots[line / SIDE * i % SIDE]);
    const u64 row = (u64)(blockIdx.y * LINES + line) * gridDim.z + blockIdx.z;
    out[row * gridDim.x + blockIdx.x] = {(REAL)sum.re, (REAL)sum.im};
  }
}
