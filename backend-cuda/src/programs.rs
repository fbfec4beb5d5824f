//! The sources of `kernels/`, and what is put in front of them.

use crate::compile::Program;
use crate::direct::Shape;
use fmm_traits::{Kernel, Real, record};

/// `float` or `double`.
fn real<T: Real>() -> &'static str {
    if T::NAME == "f32" { "float" } else { "double" }
}

/// The two forms of kernel `K`: where a zero distance could hide, both test every pair for it.
fn pairs<K: Kernel, T: Real>() -> String {
    let tape = record::record::<K>();
    let bare = if tape.shows_zero_root() {
        tape.cuda_unguarded::<T>("bare_pair", "bare_rsqrt")
    } else {
        tape.cuda::<T>("bare_pair")
    };
    format!("#include \"shared/real.cuh\"\n{}{bare}", tape.cuda::<T>("guarded_pair"))
}

/// `source` made for kernel `K` in precision `T`, with further definitions in front of it.
fn of_kernel<K: Kernel, T: Real>(
    file: &str,
    source: &str,
    definitions: &[(&str, usize)],
    pairs: &str,
    entries: &'static [&'static str],
) -> Program {
    let (real, strengths, values) = (real::<T>(), K::STRENGTHS, K::VALUES);
    let mut text = format!("#define REAL {real}\n#define STRENGTHS {strengths}\n#define VALUES {values}\n");
    for (name, value) in definitions {
        text += &format!("#define {name} {value}\n");
    }
    Program {
        name: format!("{file} for {} ({values} values) in {}", K::NAME, T::NAME),
        source: text + pairs + source,
        entries,
        contract: true,
    }
}

/// Direct summation of kernel `K` in precision `T`.
pub fn direct_program<K: Kernel, T: Real>(shape: Shape) -> Program {
    let Shape { block, targets, tile, unroll } = shape;
    let definitions = [("BLOCK", block), ("TARGETS", targets), ("TILE", tile), ("UNROLL", unroll)];
    let source = include_str!("../kernels/direct.cu");
    let entries = &["pack_sources", "pack_targets", "direct_sum", "combine"];
    of_kernel::<K, T>("direct.cu", source, &definitions, &pairs::<K, T>(), entries)
}

/// Threads for `n` items that a block shares.
pub(crate) fn threads_for(n: usize) -> usize {
    if n <= 64 { 64 } else { 128 }
}

/// P2M and P2L: sources to a surface of `n` points.
pub fn p2m_program<K: Kernel, T: Real>(n: usize) -> Program {
    let source = include_str!("../kernels/p2m.cu");
    of_kernel::<K, T>("p2m.cu", source, &[("THREADS", threads_for(n))], &pairs::<K, T>(), &["to_surface", "add_net"])
}

/// Threads of the stages that work on the targets of a leaf.
pub(crate) const LEAF_THREADS: usize = 64;

/// L2P and M2P: a surface to targets.
pub fn l2p_program<K: Kernel, T: Real>() -> Program {
    let source = include_str!("../kernels/l2p.cu");
    of_kernel::<K, T>("l2p.cu", source, &[("THREADS", LEAF_THREADS)], &pairs::<K, T>(), &["from_surface"])
}

/// Threads of P2P and targets of each, for leaves with `mean` targets.
pub(crate) fn near_shape(mean: f64, values: usize) -> (usize, usize) {
    match mean {
        _ if mean <= 72.0 && values <= 4 => (32, 2),
        _ if mean <= 36.0 => (32, 1),
        _ if values <= 4 => (64, 2),
        _ => (64, 1),
    }
}

/// P2P with that shape; in f32 relative to the leaf.
pub fn p2p_program<K: Kernel, T: Real>((threads, targets): (usize, usize)) -> Program {
    let framed = usize::from(T::NAME == "f32");
    let definitions = [("THREADS", threads), ("TARGETS", targets), ("FRAMED", framed)];
    let file = format!("p2p.cu ({threads} × {targets})");
    of_kernel::<K, T>(&file, include_str!("../kernels/p2p.cu"), &definitions, &pairs::<K, T>(), &["p2p"])
}

/// The matrices of M2L, evaluated in f64 and rounded to `T`.
pub fn m2l_matrices_program<K: Kernel, T: Real>() -> Program {
    let source = include_str!("../kernels/m2l_matrices.cu");
    of_kernel::<K, T>("m2l_matrices.cu", source, &[], &pairs::<K, f64>(), &["m2l_matrices"])
}

/// A file that knows no kernel, in precision `T`.
fn of_precision<T: Real>(file: &str, source: &str, entries: &'static [&'static str]) -> Program {
    let source = format!("#define REAL {}\n{source}", real::<T>());
    Program { name: format!("{file} in {}", T::NAME), source, entries, contract: true }
}

/// M2L by those matrices.
pub fn m2l_program<T: Real>() -> Program {
    of_precision::<T>("m2l.cu", include_str!("../kernels/m2l.cu"), &["m2l_table", "m2l_keys", "m2l"])
}

/// M2L through Fourier space.
pub fn m2l_fourier_program<T: Real>() -> Program {
    let entries = &["family_flags", "family_kids", "family_around", "family_edges", "m2l_product"];
    of_precision::<T>("m2l_fourier.cu", include_str!("../kernels/m2l_fourier.cu"), entries)
}

/// Bytes of shared memory that a block has without asking.
const SHARED_MEMORY: usize = 48 << 10;

/// Boxes of a block of the transforms of order `p`: as many as its memory holds.
pub(crate) fn dft_boxes<T: Real>(p: usize) -> usize {
    let (side, complex) = (2 * p - 1, if T::NAME == "f32" { 8 } else { 16 });
    let bytes = |boxes: usize| complex * (boxes * p * (p + side) + side) + 4 * boxes;
    if bytes(8) <= SHARED_MEMORY { 8 } else { 4 }
}

/// Transforms between surfaces of order `p` and their spectra.
pub fn dft_program<T: Real>(p: usize) -> Program {
    let program = of_precision::<T>("dft.cu", include_str!("../kernels/dft.cu"), &["dft_forward", "dft_inverse"]);
    let source = format!("#define P {p}\n#define BOXES {}\n{}", dft_boxes::<T>(p), program.source);
    Program { name: format!("{} of order {p}", program.name), source, ..program }
}

/// Matrix products.
pub fn multiply_program<T: Real>() -> Program {
    of_precision::<T>("multiply.cu", include_str!("../kernels/multiply.cu"), &["multiply", "add_rows"])
}

/// A file that needs nothing in front of it. Keys and boxes come from it: no contraction.
fn plain(name: &str, source: &str, entries: &'static [&'static str]) -> Program {
    Program { name: name.to_string(), source: source.to_string(), entries, contract: false }
}

/// Bounding box, keys and order of the points.
pub(crate) fn points() -> Program {
    let entries = &["bounds", "join_bounds", "point_keys", "gather"];
    plain("points.cu", include_str!("../kernels/points.cu"), entries)
}

/// Radix sort.
pub(crate) fn sort() -> Program {
    let entries = &["iota", "sort_count", "sort_starts", "sort_pass"];
    plain("sort.cu", include_str!("../kernels/sort.cu"), entries)
}

/// Prefix sums.
pub(crate) fn scan() -> Program {
    let entries = &["scan_blocks", "scan_sums", "scan_finish"];
    plain("scan.cu", include_str!("../kernels/scan.cu"), entries)
}

/// Splitting of boxes.
pub(crate) fn split() -> Program {
    let entries = &[
        "root_box",
        "split_count",
        "split_coincident",
        "split_octants",
        "split_fill",
        "leaf_sums",
        "deep_count",
        "deep_keys",
        "deep_boxes",
        "deep_map",
        "deep_move",
    ];
    plain("split.cu", include_str!("../kernels/split.cu"), entries)
}

/// Edge lists.
pub(crate) fn lists() -> Program {
    let entries = &[
        "family_count",
        "family_fill",
        "rows_count",
        "far_fill",
        "near_fill",
        "first_level",
        "reach",
        "up_count",
        "up_fill",
        "down_count",
        "down_fill",
        "near_pairs",
    ];
    plain("lists.cu", include_str!("../kernels/lists.cu"), entries)
}

/// Edges by operator, lists of boxes, the ends of a run.
pub(crate) fn arrange() -> Program {
    let entries = &["edge_keys", "take", "key_starts", "with_edges", "list_boxes", "scatter", "gather"];
    plain("arrange.cu", include_str!("../kernels/arrange.cu"), entries)
}

/// Every program that needs no kernel.
pub fn all_programs() -> Vec<Program> {
    vec![
        points(),
        sort(),
        scan(),
        split(),
        lists(),
        arrange(),
        multiply_program::<f32>(),
        multiply_program::<f64>(),
        m2l_program::<f32>(),
        m2l_program::<f64>(),
        m2l_fourier_program::<f32>(),
        m2l_fourier_program::<f64>(),
    ]
}
