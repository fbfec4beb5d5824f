// CUDA C++ for a host compiler: the built-in names that the programs of backend-cuda use. Included in front of each
// program. The operations on threads are those of the emulated driver (driver.cpp).
#pragma once

#include "runtime.hpp"

#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
// CUDA allows the word behind __shared__, too.
#define alignas(n) __attribute__((aligned(n)))
#define __align__(n) __attribute__((aligned(n)))
// nvrtc.cpp looks for these words behind the preprocessor.
#ifndef EMULATED_SEARCH
#define __global__
#define __launch_bounds__(...)
// A thread of the host runs one block at a time.
#define __shared__ thread_local
#endif
#define __CUDA_ARCH__ 900

namespace emulated {

inline const Runtime* runtime;

}  // namespace emulated

#define threadIdx (emulated::current().thread)
#define blockIdx (emulated::current().block)
#define blockDim (emulated::current().block_size)
#define gridDim (emulated::current().grid_size)

// Vectors.
struct alignas(2) uchar2 {
  unsigned char x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
inline uchar2 make_uchar2(unsigned char x, unsigned char y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline double2 make_double2(double x, double y) { return {x, y}; }

// Arithmetic. min and max take two types, as in CUDA.
template <class A, class B>
inline auto min(A a, B b) -> decltype(true ? A() : B()) {
  typedef decltype(true ? A() : B()) Both;
  return (Both)b < (Both)a ? (Both)b : (Both)a;
}
template <class A, class B>
inline auto max(A a, B b) -> decltype(true ? A() : B()) {
  typedef decltype(true ? A() : B()) Both;
  return (Both)a < (Both)b ? (Both)b : (Both)a;
}
// A number that is NaN loses.
inline double min(double a, double b) { return __builtin_fmin(a, b); }
inline double max(double a, double b) { return __builtin_fmax(a, b); }
inline float min(float a, float b) { return __builtin_fminf(a, b); }
inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
inline double fmin(double a, double b) { return __builtin_fmin(a, b); }
inline double fmax(double a, double b) { return __builtin_fmax(a, b); }
inline float fmin(float a, float b) { return __builtin_fminf(a, b); }
inline float fmax(float a, float b) { return __builtin_fmaxf(a, b); }
inline float fminf(float a, float b) { return __builtin_fminf(a, b); }
inline float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }

#define EMULATED_FUNCTION(name)                                     \
  inline double name(double x) { return __builtin_##name(x); }      \
  inline float name(float x) { return __builtin_##name##f(x); }     \
  inline float name##f(float x) { return __builtin_##name##f(x); }
EMULATED_FUNCTION(sqrt)
EMULATED_FUNCTION(exp)
EMULATED_FUNCTION(exp2)
EMULATED_FUNCTION(log)
EMULATED_FUNCTION(sin)
EMULATED_FUNCTION(cos)
EMULATED_FUNCTION(erf)
EMULATED_FUNCTION(fabs)
EMULATED_FUNCTION(floor)
EMULATED_FUNCTION(ceil)
#undef EMULATED_FUNCTION
inline int abs(int x) { return x < 0 ? -x : x; }
inline float abs(float x) { return __builtin_fabsf(x); }
inline double abs(double x) { return __builtin_fabs(x); }
inline double hypot(double a, double b) { return __builtin_hypot(a, b); }
inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double rsqrt(double x) { return 1 / __builtin_sqrt(x); }
inline float rsqrt(float x) { return (float)(1 / __builtin_sqrt((double)x)); }
inline float rsqrtf(float x) { return rsqrt(x); }
inline double ldexp(double x, int e) { return __builtin_ldexp(x, e); }
inline void sincospi(double x, double* sine, double* cosine) {
  // Reduced to a quarter of a half turn, where π x has no error worth mentioning.
  const double turns = __builtin_rint(2 * x), rest = 3.14159265358979323846 * (x - 0.5 * turns);
  const double s = __builtin_sin(rest), c = __builtin_cos(rest);
  switch ((long long)turns & 3) {
    case 0: *sine = s, *cosine = c; break;
    case 1: *sine = c, *cosine = -s; break;
    case 2: *sine = -s, *cosine = -c; break;
    default: *sine = -c, *cosine = s; break;
  }
}

// Operations that are rounded one by one. The barriers keep the compiler from contracting them.
#define EMULATED_ROUNDED(name, operator)          \
  inline double name(double a, double b) {        \
    double r = a operator b;                      \
    __asm__("" : "+x"(r));                        \
    return r;                                     \
  }
EMULATED_ROUNDED(__dadd_rn, +)
EMULATED_ROUNDED(__dsub_rn, -)
EMULATED_ROUNDED(__dmul_rn, *)
#undef EMULATED_ROUNDED

// Bits.
namespace emulated {
template <class To, class From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}
}  // namespace emulated
inline unsigned __float_as_uint(float x) { return emulated::bits<unsigned>(x); }
inline int __float_as_int(float x) { return emulated::bits<int>(x); }
inline float __uint_as_float(unsigned x) { return emulated::bits<float>(x); }
inline float __int_as_float(int x) { return emulated::bits<float>(x); }
inline long long __double_as_longlong(double x) { return emulated::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return emulated::bits<double>(x); }
inline int __double2hiint(double x) { return (int)(emulated::bits<unsigned long long>(x) >> 32); }
inline int __double2loint(double x) { return (int)emulated::bits<unsigned long long>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(unsigned x) { return __builtin_ffs((int)x); }
inline int __clz(unsigned x) { return x == 0 ? 32 : __builtin_clz(x); }

// Atomic operations.
template <class T>
inline T atomicAdd(T* at, T x) {
  return __atomic_fetch_add(at, x, __ATOMIC_RELAXED);
}
template <class T>
inline T atomicOr(T* at, T x) {
  return __atomic_fetch_or(at, x, __ATOMIC_RELAXED);
}
namespace emulated {
template <class T, class Choose>
inline T replace(T* at, Choose choose) {
  T old = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(at, &old, choose(old), true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}
}  // namespace emulated
template <class T>
inline T atomicMin(T* at, T x) {
  return emulated::replace(at, [&](T old) { return x < old ? x : old; });
}
template <class T>
inline T atomicMax(T* at, T x) {
  return emulated::replace(at, [&](T old) { return old < x ? x : old; });
}
template <class T>
inline T atomicCAS(T* at, T expected, T x) {
  __atomic_compare_exchange_n(at, &expected, x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __threadfence(); }

// Threads of a block, and lanes of a warp.
inline void __syncthreads() { emulated::runtime->barrier(); }

namespace emulated {
// Two numbers that a lane gives to a warp operation, and the number that it gets.
template <class T>
struct Exchange {
  T value;
  unsigned source;
  T result;
};
template <class T>
inline void exchange(void* const* operands, unsigned lanes) {
  for (unsigned l = 0; l < 32; ++l) {
    if (!(lanes >> l & 1)) continue;
    Exchange<T>& mine = *(Exchange<T>*)operands[l];
    // A lane that takes no part gives nothing defined: all bits set.
    if (lanes >> mine.source & 1)
      mine.result = ((Exchange<T>*)operands[mine.source])->value;
    else
      __builtin_memset(&mine.result, 0xff, sizeof(T));
  }
}
template <class T>
inline T from_lane(unsigned mask, T value, unsigned source) {
  Exchange<T> mine = {value, source, value};
  runtime->together(mask, &mine, exchange<T>);
  return mine.result;
}
inline unsigned lane() { return current().lane; }

inline void nothing(void* const*, unsigned) {}
struct Vote {
  bool yes;
  // The lanes that said yes, and all lanes that take part.
  unsigned result, lanes;
};
inline void vote(void* const* operands, unsigned lanes) {
  unsigned all = 0;
  for (unsigned l = 0; l < 32; ++l)
    if (lanes >> l & 1) all |= (unsigned)((Vote*)operands[l])->yes << l;
  for (unsigned l = 0; l < 32; ++l)
    if (lanes >> l & 1) ((Vote*)operands[l])->result = all, ((Vote*)operands[l])->lanes = lanes;
}
template <class T>
inline void match(void* const* operands, unsigned lanes) {
  for (unsigned l = 0; l < 32; ++l) {
    if (!(lanes >> l & 1)) continue;
    Exchange<T>& mine = *(Exchange<T>*)operands[l];
    mine.source = 0;
    for (unsigned k = 0; k < 32; ++k)
      if (lanes >> k & 1 && ((Exchange<T>*)operands[k])->value == mine.value) mine.source |= 1u << k;
  }
}
}  // namespace emulated

inline void __syncwarp(unsigned mask = ~0u) { emulated::runtime->together(mask, nullptr, emulated::nothing); }
namespace emulated {
inline Vote voted(unsigned mask, bool yes) {
  Vote mine = {yes, 0, 0};
  runtime->together(mask, &mine, vote);
  return mine;
}
}  // namespace emulated
inline unsigned __ballot_sync(unsigned mask, int yes) { return emulated::voted(mask, yes).result; }
inline int __any_sync(unsigned mask, int yes) { return emulated::voted(mask, yes).result != 0; }
inline int __all_sync(unsigned mask, int yes) {
  const emulated::Vote all = emulated::voted(mask, yes);
  return all.result == all.lanes;
}
template <class T>
inline unsigned __match_any_sync(unsigned mask, T value) {
  emulated::Exchange<T> mine = {value, 0, value};
  emulated::runtime->together(mask, &mine, emulated::match<T>);
  return mine.source;
}
// `width` lanes form a section. A lane whose source is outside its section gets its own value.
template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const unsigned l = emulated::lane(), section = l & ~(unsigned)(width - 1);
  return emulated::from_lane(mask, value, section | ((unsigned)source & (unsigned)(width - 1)));
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned l = emulated::lane(), at = l & (unsigned)(width - 1);
  return emulated::from_lane(mask, value, at < delta ? l : l - delta);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned l = emulated::lane(), at = l & (unsigned)(width - 1);
  return emulated::from_lane(mask, value, at + delta >= (unsigned)width ? l : l + delta);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  const unsigned l = emulated::lane(), other = l ^ (unsigned)lanes;
  return emulated::from_lane(mask, value, (other & ~(unsigned)(width - 1)) > l ? l : other);
}

// Instructions: the functions of backend-cuda/kernels/shared/intrinsics.cuh.

// A seed without the last bits, and without subnormal numbers.
inline float rsqrt_seed(float x) {
  if (__builtin_fabsf(x) < __FLT_MIN__) return __builtin_copysignf(__builtin_inff(), x);
  return rsqrt(x);
}
inline double rsqrt_seed(double x) {
  if (__builtin_fabs(x) < __DBL_MIN__) return __builtin_copysign(__builtin_inf(), x);
  return __longlong_as_double(__double_as_longlong(rsqrt(x)) & (long long)0xffffffff00000000ull);
}

inline float reciprocal_seed(float x) {
  if (__builtin_fabsf(x) < __FLT_MIN__) return __builtin_copysignf(__builtin_inff(), x);
  return 1 / x;
}
inline double reciprocal_seed(double x) {
  if (__builtin_fabs(x) < __DBL_MIN__) return __builtin_copysign(__builtin_inf(), x);
  return __longlong_as_double(__double_as_longlong(1 / x) & (long long)0xffffffff00000000ull);
}

namespace emulated {
// A product of matrices of 16 × 8 and 8 × 8. T is the type of the sums.
template <class T>
struct Product {
  T* c;
  double a[4], b[2];
};
template <class T>
inline void multiply_add(void* const* operands, unsigned lanes) {
  double a[16][8], b[8][8];
  if (lanes != ~0u) return runtime->fail("a product on tensor cores without all lanes of the warp");
  for (unsigned l = 0; l < 32; ++l) {
    const Product<T>& of = *(const Product<T>*)operands[l];
    const unsigned g = l / 4, t = l % 4;
    for (unsigned i = 0; i < 4; ++i) a[g + i % 2 * 8][t + i / 2 * 4] = of.a[i];
    for (unsigned i = 0; i < 2; ++i) b[t + 4 * i][g] = of.b[i];
  }
  for (unsigned l = 0; l < 32; ++l) {
    T* c = ((const Product<T>*)operands[l])->c;
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = l / 4 + i / 2 * 8, column = l % 4 * 2 + i % 2;
      double sum = c[i];
      for (unsigned k = 0; k < 8; ++k) sum += a[row][k] * b[k][column];
      c[i] = (T)sum;
    }
  }
}
}  // namespace emulated
inline void multiply_add_16x8x8(double* c, const double* a, const double* b) {
  emulated::Product<double> mine = {c, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  emulated::runtime->together(~0u, &mine, emulated::multiply_add<double>);
}
// The tensor core reads the first 19 bits.
inline void multiply_add_16x8x8(float* c, const unsigned* a, const unsigned* b) {
  emulated::Product<float> mine = {c};
  for (int i = 0; i < 4; ++i) mine.a[i] = __uint_as_float(a[i] & 0xffffe000u);
  for (int i = 0; i < 2; ++i) mine.b[i] = __uint_as_float(b[i] & 0xffffe000u);
  emulated::runtime->together(~0u, &mine, emulated::multiply_add<float>);
}

template <unsigned BYTES>
inline void copy_async(void* to, const void* from, bool there) {
  emulated::runtime->copy_async(to, there ? from : nullptr, BYTES);
}
inline void commit_copies() { emulated::runtime->commit_copies(); }
template <unsigned GROUPS>
inline void wait_for_copies() {
  emulated::runtime->wait_copies(GROUPS);
}

// What the driver needs of a program. EMULATED_KERNEL is written behind the program for each of its kernels.
namespace emulated {
template <class T>
struct IsPointer {
  static constexpr bool value = false;
};
template <class T>
struct IsPointer<T*> {
  static constexpr bool value = true;
};
template <unsigned... I>
struct Numbers {};
template <unsigned N, unsigned... I>
struct UpTo : UpTo<N - 1, N - 1, I...> {};
template <unsigned... I>
struct UpTo<0, I...> {
  typedef Numbers<I...> Type;
};
template <class F, F* kernel>
struct Unpack;
template <class... A, void (*kernel)(A...)>
struct Unpack<void(A...), kernel> {
  static constexpr unsigned count = sizeof...(A);
  static constexpr unsigned bytes[sizeof...(A) + 1] = {sizeof(A)..., 0};
  static constexpr bool pointers[sizeof...(A) + 1] = {IsPointer<A>::value..., false};
  template <unsigned... I>
  static void spread(void* const* arguments, Numbers<I...>) {
    kernel(*(A*)arguments[I]...);
  }
  static void call(void* const* arguments) { spread(arguments, typename UpTo<sizeof...(A)>::Type()); }
};
}  // namespace emulated

#define EMULATED_KERNEL(name, threads)                                                                            \
  extern "C" __attribute__((visibility("default"))) const emulated::Kernel emulated_kernel_##name = {             \
      threads, emulated::Unpack<decltype(name), name>::count, emulated::Unpack<decltype(name), name>::bytes,      \
      emulated::Unpack<decltype(name), name>::pointers, emulated::Unpack<decltype(name), name>::call};

// Called once after the program is loaded.
extern "C" __attribute__((visibility("default"))) void emulated_bind(const emulated::Runtime* runtime) {
  emulated::runtime = runtime;
}
// A program without shared memory has a thread-local segment, too.
extern "C" __attribute__((visibility("default"))) thread_local char emulated_present;
thread_local char emulated_present = 0;
