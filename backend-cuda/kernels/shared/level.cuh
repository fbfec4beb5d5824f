// The table of levels.
#pragma once

#include "shared/boxes.cuh"

// One row of `LEVEL_ROW` numbers per level: the kernel parameters on the unit box, then the factors of strengths and of
// values that the stage needs. Parameters that a kernel does not have are 0. PARAMETERS is an option of the compiler
// (compile.rs).
#define LEVEL_HEAD PARAMETERS
