// The field of a row of harmonics at points, and its derivatives. Twin of the tables in src/spherical/series.rs.
//
// The potential of a local L at y is F(y) = Σ L R(y). The potential of a multipole M at x is ρ F(y) with F(y) = Σ M
// R(y), the inverted point y = x/|x|² and ρ = |y| = 1/|x|. Both need F and its derivatives; the multipole needs the
// chain rule in addition (`finish`).
//
// F is summed column by column (a column is all degrees of one m):
//   Σ_m Re (x + iy)^m Σ_n c_nm Q_n^m + Im (x + iy)^m Σ_n s_nm Q_n^m.
// Q_m^m = 1 and Q_n^m = z Q_{n−1}^m − β r² Q_{n−2}^m are polynomials in z and r² = x² + y² + z². They are R_n^m without
// its constant and without (x + iy)^m; no square roots are left. Each derivative is a value with coefficients of its
// own.
//
// Defined in front: REAL, VALUES, ORDER, SINGULAR, and Source, the coefficients of a harmonic for all values.
#pragma once

#include "shared/point.cuh"

// Number of harmonics in column m.
__device__ __forceinline__ constexpr int width(int m) { return (ORDER - m) * (m > 0 ? 2 : 1); }
// β in the recursion of Q_n^m, m ≤ n − 2.
__device__ __forceinline__ constexpr REAL beta(int n, int m) {
  return REAL((n + m - 1) * (n - m - 1)) / REAL((2 * n - 1) * (2 * n - 3));
}
// Number of derivatives in value k: 0, 1 or 2. Each derivative lowers the degree by one.
__device__ __forceinline__ constexpr int degree(int k) { return k == 0 ? 0 : k < 4 ? 1 : 2; }

// Adds the harmonics of one column to the values. The column is M, or `given` if M is negative. Coefficients come
// degree by degree; for m > 0 the cosine, then the sine. `betas` is a table of `beta` in a triangle, used if M is
// negative.
template <int M, int EACH>
__device__ __forceinline__ void add_column(Point (&at)[EACH], const Source* from, int given, const REAL* betas) {
  constexpr bool known = M >= 0;
  const int m = known ? M : given;
  REAL c[EACH][VALUES] = {}, s[EACH][VALUES] = {}, q[EACH], before[EACH] = {};
  if (m > 0)
#pragma unroll
    for (int i = 0; i < EACH; ++i) at[i].next();
#pragma unroll
  for (int i = 0; i < EACH; ++i) q[i] = 1;
#pragma unroll(known ? ORDER : 2)
  for (int n = m; n < ORDER; ++n) {
    const Source cosines = *from++;
    Source sines;
    if (m > 0) sines = *from++;
    if (n > m) {
      const REAL b = known ? (n > m + 1 ? beta(n, m) : REAL(0)) : betas[n * (n + 1) / 2 + m];
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        const REAL last = q[i];
        q[i] = at[i].y[2] * last;
        if (!known || n > m + 1) q[i] -= b * (at[i].r2 * before[i]);
        before[i] = last;
      }
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i)
#pragma unroll
      for (int k = 0; k < VALUES; ++k) {
        // Derivatives of the highest degrees are zero.
        if (known && n + degree(k) >= ORDER) continue;
        c[i][k] += cosines.v[k] * q[i];
        if (m > 0) s[i][k] += sines.v[k] * q[i];
      }
  }
#pragma unroll
  for (int i = 0; i < EACH; ++i)
#pragma unroll
    for (int k = 0; k < VALUES; ++k) {
      if (known && m + degree(k) >= ORDER) continue;
      at[i].value[k] += m > 0 ? c[i][k] * at[i].cosine + s[i][k] * at[i].sine : c[i][k];
    }
}
// Adds all columns from M on.
template <int M, int EACH>
__device__ __forceinline__ void add_columns(Point (&at)[EACH], const Source* from) {
  if constexpr (M < ORDER) {
    add_column<M>(at, from, M, nullptr);
    add_columns<M + 1>(at, from + width(M));
  }
}

// Place of the second derivative by axes a ≤ b.
__device__ __forceinline__ constexpr int second(int a, int b) { return 4 + (a == 0 ? b : a == 1 ? 2 + b : 5); }

// The chain rule: from F and its derivatives by y to the derivatives of ρ F(y) by x. With E = y·∇F, h = (∇∇F) y and
// A = F + 2E:
//   ∂_i = ρ (ρ² F_i − y_i A),
//   ∂_i ∂_j = ρ (ρ⁴ F_ij − ρ² δ_ij A − ρ² (y_j (3F_i + 2h_i) + y_i (3F_j + 2h_j)) + y_i y_j (3A + 6E + 4 y·h)).
__device__ __forceinline__ void finish(Point& at) {
  if (!SINGULAR) return;
  auto& v = at.value;
  if constexpr (VALUES >= 4) {
    const REAL e = at.y[0] * v[1] + (at.y[1] * v[2] + at.y[2] * v[3]), a = v[0] + 2 * e;
    if constexpr (VALUES >= 10) {
      REAL h[3], g[3], s = 0;
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        h[i] = 0;
#pragma unroll
        for (int j = 0; j < 3; ++j) h[i] += v[i < j ? second(i, j) : second(j, i)] * at.y[j];
        s += at.y[i] * h[i];
        g[i] = 3 * v[1 + i] + 2 * h[i];
      }
      const REAL both = 3 * a + (6 * e + 4 * s);
#pragma unroll
      for (int i = 0; i < 3; ++i)
#pragma unroll
        for (int j = i; j < 3; ++j) {
          const REAL inner = at.r2 * v[second(i, j)] - (at.y[j] * g[i] + at.y[i] * g[j]) - (i == j ? a : REAL(0));
          v[second(i, j)] = at.rho * (at.r2 * inner + at.y[i] * at.y[j] * both);
        }
    }
#pragma unroll
    for (int i = 0; i < 3; ++i) v[1 + i] = at.rho * (at.r2 * v[1 + i] - at.y[i] * a);
  }
  v[0] *= at.rho;
}
