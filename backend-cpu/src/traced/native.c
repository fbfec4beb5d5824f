/* A loop over pairs of one kernel. These macros stand before this text: REAL and INTEGER (of the same size); WIDTH, the
   numbers in a vector; TARGETS, the targets of a block; PIECES, the numbers that make up a coordinate; STRENGTHS, VALUES,
   SCALARS; UNIT, whether values are per unit of the only strength; MAX_SETS; and the operations of the kernel: DECLARE,
   OPERATIONS and VALUE(i, k). */

typedef __PTRDIFF_TYPE__ size;
typedef REAL V __attribute__((vector_size(WIDTH * sizeof(REAL)), may_alias));
/* Integers of the size of REAL: results of comparisons, all bits of a number or none. */
typedef INTEGER M __attribute__((vector_size(WIDTH * sizeof(REAL)), may_alias));

struct sum {
  const REAL *targets[6];
  size n;
  /* Row r of the sources begins at rows + r * stride. Rows begin on cache lines, and their padding is readable. */
  const REAL *rows;
  size stride;
  /* Multiples of WIDTH. */
  size begin, end;
  size sets;
  /* Index of target 0 among the sources, if `skip`. */
  size own, skip;
  const REAL *scalars;
  REAL *out;
  /* Replaces n numbers by a function of them. */
  void (*function)(unsigned which, size n, REAL *x);
};

#define INLINE static inline __attribute__((always_inline))

INLINE V all(REAL x) { return x - (V){0}; }
INLINE V pick(M m, V a, V b) { return (V)(((M)a & m) | ((M)b & ~m)); }
/* 1 where m holds, else 0. */
INLINE V flag(M m) { return (V)((M)all(1) & m); }
INLINE V product_and_sum(V a, V b, V c) { return a * b + c; }

/* 1/sqrt(x), and 0 at x = 0. The steps are those of the vectors in lanes/. */
INLINE V reciprocal_root(V x) {
#if defined(__AVX512F__) && WIDTH == 8
  V w = (V)__builtin_ia32_rsqrt14pd512_mask(x, (V){0}, -1);
  w = pick(x != 0, w, (V){0});
  V h = 1 - (x * w) * w, c = h * (REAL)0.3125 + (REAL)0.375;
  c = h * c + (REAL)0.5;
  return (h * w) * c + w;
#elif defined(__AVX512F__) && WIDTH == 16
  V w = (V)__builtin_ia32_rsqrt14ps512_mask(x, (V){0}, -1);
  w = pick(x != 0, w, (V){0});
  return w * ((REAL)1.5 - (x * w) * (w * (REAL)0.5));
#elif defined(__AVX2__) && WIDTH == 8
  V w = pick(x >= (REAL)__FLT_MIN__, (V)__builtin_ia32_rsqrtps256(x), (V){0});
  V h = 1 - (x * w) * w, c = h * (REAL)0.375 + (REAL)0.5;
  return (h * w) * c + w;
#else
  V y;
  for (int i = 0; i < WIDTH; i++) y[i] = 1 / (sizeof(REAL) == 4 ? __builtin_sqrtf(x[i]) : __builtin_sqrt(x[i]));
  return pick(x != 0, y, (V){0});
#endif
}

#define EACH for (int k = 0; k < TARGETS; k++)
#define SOURCE(row) (*(const V *)(s->rows + (row) * s->stride + j))

/* All sums, for `together` sets of strengths at a time. */
INLINE void sums(const struct sum *s, const size together) {
  V c[SCALARS];
  for (int i = 0; i < SCALARS; i++) c[i] = all(s->scalars[i]);
  M lanes;
  for (int i = 0; i < WIDTH; i++) lanes[i] = i;
  for (size first = 0; first < s->n; first += TARGETS) {
    V at[3 * PIECES][TARGETS];
    for (int a = 0; a < 3 * PIECES; a++) EACH at[a][k] = all(s->targets[a][first + k < s->n ? first + k : s->n - 1]);
    for (size set = 0; set < s->sets; set += together) {
      const size some = s->sets - set < together ? s->sets - set : together;
      V sum[MAX_SETS * VALUES * TARGETS];
      for (size i = 0; i < together * VALUES * TARGETS; i++) sum[i] = (V){0};
      for (size j = s->begin; j < s->end; j += WIDTH) {
        V x0[TARGETS], x1[TARGETS], x2[TARGETS], x3[TARGETS];
        EACH {
          V d[3];
          for (int a = 0; a < 3; a++) {
            d[a] = at[a][k] - SOURCE(a);
            if (PIECES == 2) d[a] = d[a] - SOURCE(3 * (PIECES - 1) + a) + at[3 * (PIECES - 1) + a][k];
          }
          x0[k] = d[0], x1[k] = d[1], x2[k] = d[2];
          x3[k] = d[0] * d[0] + (d[1] * d[1] + d[2] * d[2]);
        }
        V q[STRENGTHS];
        for (int i = 0; i < STRENGTHS; i++) q[i] = SOURCE(3 * PIECES + set * STRENGTHS + i);
        DECLARE
        OPERATIONS
        V u[VALUES][TARGETS];
        for (int i = 0; i < VALUES; i++) EACH u[i][k] = VALUE(i, k);
        if (s->skip && s->own + first < j + WIDTH && j < s->own + first + TARGETS)
          EACH for (int i = 0; i < VALUES; i++) u[i][k] = pick(lanes == (INTEGER)(s->own + first + k - j), (V){0}, u[i][k]);
        if (UNIT)
          for (size i = 0; i < some; i++) {
            const V strength = SOURCE(3 * PIECES + set + i);
            for (int v = 0; v < VALUES; v++) EACH sum[(i * VALUES + v) * TARGETS + k] += u[v][k] * strength;
          }
        else
          for (int v = 0; v < VALUES; v++) EACH sum[v * TARGETS + k] += u[v][k];
      }
      for (size i = 0; i < some; i++)
        for (int v = 0; v < VALUES; v++)
          for (int k = 0; k < TARGETS && first + k < s->n; k++) {
            REAL total = 0;
            for (int l = 0; l < WIDTH; l++) total += sum[(i * VALUES + v) * TARGETS + k][l];
            s->out[((set + i) * s->n + first + k) * VALUES + v] += total;
          }
    }
  }
}

void fmm_pairs(const struct sum *s) {
  if (s->sets == 1 || !UNIT)
    sums(s, 1);
  else
    sums(s, MAX_SETS);
}
