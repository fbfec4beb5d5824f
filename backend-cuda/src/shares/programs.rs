//! The programs of trees that several ranks share.

use crate::compile::Program;
use crate::programs::{Named, plain, rows};

/// Trees of the points of several ranks.
pub(crate) fn joint() -> Program {
    let entries = &["merge_splits", "merge_runs", "long_run", "own_places", "widen", "narrow", "own_corner_sums"];
    plain("joint.cu", include_str!("../../kernels/joint.cu"), entries)
}

/// Points of shares of a tree.
pub(crate) fn share_points() -> Program {
    let entries = &[
        "leaf_flags",
        "leaf_starts",
        "leaf_readers",
        "kept_before_places",
        "own_readers",
        "row_shares",
        "items_of_shares",
        "take_and_add",
        "pack_points",
        "put_points",
        "keep_points",
        "places_by_row",
    ];
    plain("share_points.cu", include_str!("../../kernels/share_points.cu"), entries)
}

/// Shares of a tree.
pub(crate) fn shares() -> Program {
    let entries = &[
        "weigh",
        "first_targets",
        "first_sources",
        "own_flags",
        "with_ancestors",
        "own_boxes",
        "kept_count",
        "kept_fill",
        "renumber",
        "mark",
        "join_flags",
        "marked",
        "part_counts",
    ];
    plain("shares.cu", include_str!("../../kernels/shares.cu"), entries)
}

/// The programs that shares of a tree need beside those of trees.
pub(crate) const OF_SHARES: [Named; 4] =
    [("joint", joint), ("share_points", share_points), ("shares", shares), ("rows", rows)];
