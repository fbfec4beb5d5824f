//! The sources of `kernels/`, and what is put in front of them.

use crate::compile::Program;
use crate::direct::Shape;
use fmm_traits::{Kernel, Real, record};

/// Direct summation of kernel `K` in precision `T`.
pub fn direct_program<K: Kernel, T: Real>(shape: Shape) -> Program {
    let tape = record::record::<K>();
    let guarded = tape.cuda::<T>("guarded_pair");
    // Where a zero distance could hide, every pair is tested for it.
    let bare = if tape.shows_zero_root() {
        tape.cuda_unguarded::<T>("bare_pair", "bare_rsqrt")
    } else {
        tape.cuda::<T>("bare_pair")
    };
    let real = if T::NAME == "f32" { "float" } else { "double" };
    let Shape { block, targets, tile, unroll } = shape;
    let (strengths, values) = (K::STRENGTHS, K::VALUES);
    let source = format!(
        "#define REAL {real}
#define STRENGTHS {strengths}
#define VALUES {values}
#define BLOCK {block}
#define TARGETS {targets}
#define TILE {tile}
#define UNROLL {unroll}
#include \"shared/real.cuh\"
{guarded}{bare}{}",
        include_str!("../kernels/direct.cu")
    );
    Program {
        name: format!("direct.cu for {} ({} values) in {}", K::NAME, values, T::NAME),
        source,
        entries: &["pack_sources", "pack_targets", "direct_sum", "combine"],
        contract: true,
    }
}

/// A file that needs nothing in front of it. Keys and boxes come from it: no contraction.
fn plain(name: &str, source: &str, entries: &'static [&'static str]) -> Program {
    Program { name: name.to_string(), source: source.to_string(), entries, contract: false }
}

/// Bounding box, keys and order of the points.
pub(crate) fn points() -> Program {
    let entries = &["bounds", "join_bounds", "point_keys", "gather", "iota"];
    plain("points.cu", include_str!("../kernels/points.cu"), entries)
}

/// Radix sort.
pub(crate) fn sort() -> Program {
    plain("sort.cu", include_str!("../kernels/sort.cu"), &["sort_count", "sort_scatter"])
}

/// Prefix sums.
pub(crate) fn scan() -> Program {
    let entries = &["scan_blocks", "scan_sums", "scan_finish"];
    plain("scan.cu", include_str!("../kernels/scan.cu"), entries)
}

/// Splitting of boxes.
pub(crate) fn split() -> Program {
    let entries = &["split_count", "split_coincident", "split_octants", "split_fill", "deep_count", "deep_keys", "deep_boxes", "deep_map", "deep_move"];
    plain("split.cu", include_str!("../kernels/split.cu"), entries)
}

/// Edge lists.
pub(crate) fn lists() -> Program {
    let entries = &[
        "family_count",
        "family_fill",
        "rows_count",
        "rows_fill",
        "first_level",
        "reach",
        "up_count",
        "up_fill",
        "down_count",
        "down_fill",
    ];
    plain("lists.cu", include_str!("../kernels/lists.cu"), entries)
}

/// Every program that needs no kernel.
pub fn all_programs() -> Vec<Program> {
    vec![points(), sort(), scan(), split(), lists()]
}
