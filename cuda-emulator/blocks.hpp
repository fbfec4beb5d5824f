// Running the blocks of a launch (blocks.cpp).
#pragma once

#include <cstddef>

#include "runtime.hpp"

namespace emulated {

struct Launch {
  const char* name;
  const Kernel* kernel;
  Dim3 grid, block;
  void* const* arguments;
  // Where the program is loaded.
  std::size_t module_id;
};

// The functions for programs.
extern const Runtime RUNTIME;

// Runs all blocks, and returns when they are done. One launch at a time.
void run(const Launch& launch);

// Prints what runs on this thread of the host, then the message, and ends the process.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// What fresh memory holds: NaN as f32 and as f64, and an index beyond every array.
constexpr unsigned FRESH = 0xfff7fff7u;
void fill_fresh(void* at, std::size_t bytes);

// Whether an environment variable is a number; `otherwise` if it is not set.
unsigned long long setting(const char* name, unsigned long long otherwise);

}  // namespace emulated
