// A foreign function of XLA that keeps the stream busy for some nanoseconds. It shows what JAX adds to any work on a
// GPU: python3 benches/python_arrays.py --busy xla_busy.so, after
//
//     nvcc -O2 -std=c++17 -arch=native -Xcompiler -fPIC -shared -o xla_busy.so benches/xla_busy.cu \
//         -I"$(python3 -c 'import jax; print(jax.ffi.include_dir())')"
#include <cuda_runtime.h>

#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;

__global__ void busy(long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (static_cast<long long>(now - start) < nanoseconds);
}

extern "C" void busy_on(cudaStream_t stream, long long nanoseconds) {
    if (nanoseconds > 0) busy<<<1, 1, 0, stream>>>(nanoseconds);
}

static ffi::Error called(cudaStream_t stream, int64_t nanoseconds, ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer>) {
    busy_on(stream, nanoseconds);
    return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(busy_call, called,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Attr<int64_t>("nanoseconds")
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>());
