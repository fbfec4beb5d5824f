// What a compiled program and the emulated driver know of each other. No standard header is included here, because
// programs include this file and NVRTC has none either.
#pragma once

namespace emulated {

typedef __UINTPTR_TYPE__ Address;

struct Dim3 {
  unsigned x, y, z;
};

// Bytes of the stack of a thread of a block, a power of two. The stack is aligned to its size, so that a thread finds
// its own state from any address on its stack.
constexpr Address STACK_BYTES = 256 << 10;
// Bytes at the upper end of a stack that hold the state of its thread.
constexpr Address STATE_BYTES = 256;

// Largest dynamic shared memory of a block (compute capability 9.0).
constexpr unsigned MAX_DYNAMIC_BYTES = 232448;

// State of a thread of a block.
struct Thread {
  Dim3 thread, block, block_size, grid_size;
  // Number of the thread in its warp.
  unsigned lane;
};
static_assert(sizeof(Thread) <= STATE_BYTES, "the state fits");

// The thread that runs.
__attribute__((always_inline)) inline Thread& current() {
  const Address here = (Address)__builtin_frame_address(0);
  return *(Thread*)((here & ~(STACK_BYTES - 1)) + STACK_BYTES - STATE_BYTES);
}

// Called by the last lane of a warp operation: `operands[l]` is what lane l gave, `lanes` the lanes that take part.
typedef void (*Together)(void* const* operands, unsigned lanes);

// What the driver does for a running kernel.
struct Runtime {
  // __syncthreads.
  void (*barrier)();
  // Waits until all lanes of `mask` that have not returned have called this function with the same mask and the same
  // `work`. The last lane does the work.
  void (*together)(unsigned mask, void* operand, Together work);
  // cp.async: `from` null writes zeros. The bytes arrive at some time until the wait.
  void (*copy_async)(void* to, const void* from, unsigned bytes);
  void (*commit_copies)();
  // Waits until at most `groups` groups of copies are on their way.
  void (*wait_copies)(unsigned groups);
  // Ends the process with a message.
  void (*fail)(const char* why);
};

// A kernel of a program, exported as emulated_kernel_NAME.
struct Kernel {
  // Bounds of a launch: most threads of a block.
  unsigned max_threads;
  // Number of arguments, the bytes of each, and whether it is a pointer.
  unsigned count;
  const unsigned* bytes;
  const bool* pointers;
  // Calls the kernel in the running thread; arguments[i] is the address of argument i.
  void (*call)(void* const* arguments);
};

}  // namespace emulated
