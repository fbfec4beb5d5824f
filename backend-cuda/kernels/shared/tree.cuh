// The tree on which a kernel for either kind of tree works. Defined in front: PYRAMID, whether that is a pyramid of the
// plane or an octree. Both have is_leaf, parent_of, level_at, frame_of, sources_of and targets_of.
#pragma once

#if PYRAMID
#include "shared/pyramid.cuh"
typedef Pyramid Tree;
#else
#include "shared/boxes.cuh"
typedef Boxes Tree;
#endif
