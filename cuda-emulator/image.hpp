// A compiled program: this head, then a shared object.
#pragma once

namespace emulated {

constexpr char IMAGE_MAGIC[8] = {'F', 'M', 'M', 'E', 'M', 'U', '0', '1'};
struct ImageHead {
  char magic[8];
  unsigned long long bytes;
};

}  // namespace emulated
