//! Programs without parameters: trees, lists, the probe, both ends of an evaluation.

use crate::compile::Program;
use crate::{domains, plane};

/// A program without definitions in front. Such programs compute keys and boxes that must equal the results of the CPU,
/// so fused multiply-adds are off.
pub(crate) fn plain(name: &str, source: &str, entries: &'static [&'static str]) -> Program {
    Program { name: name.to_string(), source: source.to_string(), entries, contract: false }
}

/// Definitions of numbers, for the front of a program.
fn defined(numbers: &[(&str, usize)]) -> String {
    numbers.iter().map(|(name, number)| format!("#define {name} {number}\n")).collect()
}

/// Bounding box, keys and order of the points.
pub(crate) fn points() -> Program {
    let entries = &[
        "bounds",
        "join_bounds",
        "lift",
        "point_keys",
        "gather",
        "take_rows",
        "sample_points",
        "pairs_of_levels",
        "middle_of_axes",
    ];
    plain("points.cu", include_str!("../../kernels/points.cu"), entries)
}

/// Radix sort.
pub(crate) fn sort() -> Program {
    let entries = &["iota", "sort_count", "sort_starts", "sort_pass", "sort_sample", "sort_runs"];
    plain("sort.cu", include_str!("../../kernels/sort.cu"), entries)
}

/// Prefix sums.
pub(crate) fn scan() -> Program {
    let entries = &["scan_blocks", "scan_finish", "list_flagged", "fetch"];
    plain("scan.cu", include_str!("../../kernels/scan.cu"), entries)
}

/// Splitting of boxes.
pub(crate) fn split() -> Program {
    let entries = &[
        "root_box",
        "split_fates",
        "split_level",
        "leaf_sums",
        "deep_count",
        "deep_keys",
        "deep_boxes",
        "deep_map",
        "deep_move",
    ];
    plain("split.cu", include_str!("../../kernels/split.cu"), entries)
}

/// Edge lists.
pub(crate) fn lists() -> Program {
    let entries = &[
        "part_ranges",
        "root_neighbours",
        "family_neighbours",
        "rows_count",
        "far_fill",
        "near_fill",
        "stencil_count",
        "stencil_fill",
        "first_level",
        "reach",
        "up_count",
        "up_fill",
        "down_count",
        "down_fill",
    ];
    plain("lists.cu", include_str!("../../kernels/lists.cu"), entries)
}

/// Edge lists of a treecode.
pub(crate) fn treecode() -> Program {
    plain("treecode.cu", include_str!("../../kernels/treecode.cu"), &["treecode_count", "treecode_fill"])
}

/// The small problem of a probe.
pub(crate) fn cut() -> Program {
    cut_of("cut.cu", 0)
}

/// As [`cut`], of a pyramid.
pub(crate) fn cut_of_pyramid() -> Program {
    cut_of("cut.cu (pyramid)", 1)
}

fn cut_of(name: &str, pyramid: u32) -> Program {
    let entries = &[
        "incoming",
        "far_sources",
        "far_sums",
        "far_above",
        "far_squares",
        "sum_in_parts",
        "far_factors",
        "corner_sums",
        "take_points",
        "take_points_as_rows",
        "take_indices",
        "number_boxes",
        "cut_count",
        "cut_fill",
        "near_pairs",
    ];
    let numbers = [
        ("PYRAMID", pyramid as usize),
        ("OUTPUTS", crate::cut::OUTPUTS),
        ("TARGETS_TIMES_EDGES", fmm_tree::TARGETS_TIMES_EDGES),
        ("FEWEST_TARGETS", fmm_tree::FEWEST_TARGETS),
    ];
    plain(name, &(defined(&numbers) + include_str!("../../kernels/cut.cu")), entries)
}

/// Draws of leaves by weight.
pub(crate) fn draw() -> Program {
    draw_of("draw.cu", 0)
}

/// As [`draw`], of a pyramid.
pub(crate) fn draw_of_pyramid() -> Program {
    draw_of("draw.cu (pyramid)", 1)
}

fn draw_of(name: &str, pyramid: u32) -> Program {
    let entries = &[
        "edges_of_leaves",
        "kinds",
        "weights_by_kind",
        "classes",
        "mark_rows",
        "mark_below",
        "weights_of_sources",
        "chances",
        "drawn",
        "source_leaves",
        "facts",
        "normal_strengths",
    ];
    plain(name, &(format!("#define PYRAMID {pyramid}\n") + include_str!("../../kernels/draw.cu")), entries)
}

/// The boxes of a small problem.
pub(crate) fn thin() -> Program {
    plain("thin.cu", include_str!("../../kernels/thin.cu"), &["holding", "small_boxes"])
}

/// Edges by operator, and lists of boxes.
pub(crate) fn arrange() -> Program {
    let entries = &[
        "edge_keys",
        "take",
        "key_starts",
        "with_edges",
        "size_keys",
        "task_counts",
        "task_fill",
        "join_parts",
        "largest_leaf",
        "piece_starts",
        "source_flags",
        "source_numbers",
        "inner_flags",
        "family_flags",
        "family_edges",
        "end_flags",
        "end_table",
        "end_members",
    ];
    let numbers = [("FAMILIES", domains::TABLE_FAMILIES), ("TABLE_WARPS", domains::TABLE_WARPS)];
    plain("arrange.cu", &(defined(&numbers) + include_str!("../../kernels/arrange.cu")), entries)
}

/// Both ends of an evaluation.
pub(crate) fn ends() -> Program {
    let entries =
        &["largest_f32", "largest_f64", "scatter_f32", "scatter_f64", "gather", "deliver", "widen_f32", "places"];
    plain("ends.cu", include_str!("../../kernels/ends.cu"), entries)
}

/// Rows that travel between ranks.
pub(crate) fn rows() -> Program {
    plain("rows.cu", include_str!("../../kernels/rows.cu"), &["pack_f32", "pack_f64", "put_f32", "put_f64"])
}

/// Sources in one far field of several.
pub(crate) fn nodes() -> Program {
    plain("nodes.cu", include_str!("../../kernels/nodes.cu"), &["take_part"])
}

/// A program without parameters: its name, and what makes it.
pub(crate) type Named = (&'static str, fn() -> Program);

/// The programs that pyramids, their lists and the probe of a plan need.
pub(crate) const OF_PYRAMIDS: [Named; 8] = [
    ("points", points),
    ("sort", sort),
    ("scan", scan),
    ("plane_pyramid", plane::pyramid_program),
    ("plane_connect", plane::connect_program),
    ("cut of a pyramid", cut_of_pyramid),
    ("draw of a pyramid", draw_of_pyramid),
    ("ends", ends),
];

/// The programs that build a tree.
pub(crate) const OF_TREES: [Named; 4] = [("points", points), ("sort", sort), ("scan", scan), ("split", split)];

/// The further programs that a plan on a tree needs: those of lists, of the probe and of arrays.
pub(crate) const OF_PLANS_ON_TREES: [Named; 6] =
    [("lists", lists), ("cut", cut), ("draw", draw), ("thin", thin), ("arrange", arrange), ("ends", ends)];
