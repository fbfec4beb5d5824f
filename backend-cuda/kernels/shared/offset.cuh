// Offsets between the boxes of the V list. Twin of `offset_index` in fmm-kernels/src/equivalent/spectra.rs.
#pragma once

#define OFFSETS 316

// Number of an offset among those of {-3 … 3}³ that are not adjacent, x slowest. OFFSETS for any other offset.
__device__ u32 offset_index(const int* d) {
  bool adjacent = true;
  for (int a = 0; a < 3; ++a) {
    if (d[a] < -3 || d[a] > 3) return OFFSETS;
    adjacent = adjacent && d[a] >= -1 && d[a] <= 1;
  }
  if (adjacent) return OFFSETS;
  const int x = d[0] + 3, y = d[1] + 3, z = d[2] + 3;
  const bool x_in = x >= 2 && x <= 4, y_in = y >= 2 && y <= 4;
  const int rows = 3 * min(max(x - 2, 0), 3) + (x_in ? min(max(y - 2, 0), 3) : 0);
  return 49 * x + 7 * y + z - 3 * rows - (x_in && y_in && z > 4 ? 3 : 0);
}
