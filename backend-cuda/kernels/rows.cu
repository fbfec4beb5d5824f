// Rows of boxes that travel between ranks: a message holds the rows of a list of slots, one behind the other. Slots
// below `first_passing` are rows of `rows`, the others rows of `passing`. All rows have `width` numbers. One thread per number.

#include "shared/warp.cuh"

template <class T>
__device__ __forceinline__ T* row_of(T* rows, T* passing, u32 first_passing, u32 slot, u32 width) {
  return slot < first_passing ? rows + (u64)slot * width : passing + (u64)(slot - first_passing) * width;
}

// Copies the rows of n slots into a message.
template <class T>
__device__ __forceinline__ void pack_of(T* rows, T* passing, u32 first_passing, const u32* slots, u64 n, u32 width,
                                        T* message) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n * width) message[i] = row_of(rows, passing, first_passing, slots[i / width], width)[i % width];
}

// Puts a message into the rows of n slots or, with `add`, adds it to them. Slots are distinct.
template <class T>
__device__ __forceinline__ void put_of(T* rows, T* passing, u32 first_passing, const u32* slots, u64 n, u32 width, u32 add,
                                       const T* message) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n * width) return;
  T* to = row_of(rows, passing, first_passing, slots[i / width], width) + i % width;
  *to = add ? *to + message[i] : message[i];
}

extern "C" __global__ void pack_f32(float* rows, float* passing, u32 first_passing, const u32* slots, u64 n, u32 width, float* message) {
  pack_of(rows, passing, first_passing, slots, n, width, message);
}
extern "C" __global__ void put_f32(float* rows, float* passing, u32 first_passing, const u32* slots, u64 n, u32 width, u32 add,
                                   const float* message) {
  put_of(rows, passing, first_passing, slots, n, width, add, message);
}

extern "C" __global__ void pack_f64(double* rows, double* passing, u32 first_passing, const u32* slots, u64 n, u32 width, double* message) {
  pack_of(rows, passing, first_passing, slots, n, width, message);
}
extern "C" __global__ void put_f64(double* rows, double* passing, u32 first_passing, const u32* slots, u64 n, u32 width, u32 add,
                                   const double* message) {
  put_of(rows, passing, first_passing, slots, n, width, add, message);
}
