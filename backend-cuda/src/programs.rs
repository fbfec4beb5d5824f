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

/// Threads of a block that sums at `n` points of a surface, and points of each: few idle threads, and few reads of a source.
pub(crate) fn surface_shape(n: usize) -> (usize, usize) {
    let threads = 32 * n.div_ceil(256);
    (threads, n.div_ceil(threads))
}

/// P2M and P2L: sources to a surface of `n` points.
pub fn p2m_program<K: Kernel, T: Real>(n: usize) -> Program {
    let (threads, each) = surface_shape(n);
    let definitions = [("THREADS", threads), ("EACH", each)];
    let entries = &["to_surface", "add_net"];
    of_kernel::<K, T>("p2m.cu", include_str!("../kernels/p2m.cu"), &definitions, &pairs::<K, T>(), entries)
}

/// How the targets of a leaf are cut into groups (`group.cuh`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Groups {
    /// Threads that share a target, and targets of a thread.
    split: usize,
    most: usize,
    /// Blocks of a multiprocessor that this leaves registers for.
    blocks: usize,
}

impl Groups {
    /// Of P2P for kernels with this many values. What was faster by measurement is more blocks at a time, not more targets
    /// of a thread.
    pub fn near<T: Real>(values: usize) -> Groups {
        let (split, most, blocks) = match (T::NAME, values) {
            ("f32", 1) => (4, 6, 28),
            ("f32", 2..=4) => (4, 6, 20),
            ("f32", 5..=12) => (4, 3, 12),
            (_, 1) => (4, 6, 16),
            (_, 2..=4) => (2, 2, 20),
            ("f64", 5..=12) => (4, 2, 8),
            _ => (4, 1, 8),
        };
        Groups { split, most, blocks }
    }

    /// Of L2P and M2P, whose sources are ready in memory.
    pub fn far<T: Real>(values: usize) -> Groups {
        match (T::NAME, values) {
            ("f32", 1..=4) => Groups { split: 2, most: 4, blocks: 16 },
            ("f64", 1) => Groups { split: 2, most: 4, blocks: 14 },
            ("f64", 2..=4) => Groups { split: 2, most: 2, blocks: 16 },
            _ => Groups::near::<T>(values),
        }
    }

    /// Of L2P by harmonics, whose columns threads cannot share; and of M2P, where threads that share a target take boxes in turn
    /// (6.1 instead of 6.5 ms, docs/notes/gpu-performance.md).
    pub fn harmonics<T: Real>(values: usize, m2p: bool) -> Groups {
        let [single, few] = [T::NAME == "f32", values < 5];
        match m2p {
            true if single && values == 1 => Groups { split: 2, most: 4, blocks: 20 },
            true if few => Groups { split: 1, most: 2, blocks: 20 },
            true => Groups { split: 2, most: if single { 2 } else { 1 }, blocks: 8 },
            false if few => Groups { split: 1, most: 2, blocks: if single { 16 } else { 14 } },
            false => Groups { split: 1, most: if single { 2 } else { 1 }, blocks: 8 },
        }
    }

    /// Targets that a block sums at once.
    pub fn targets(self) -> usize {
        LEAF_THREADS / self.split * self.most
    }

    /// With so much shared memory, up to `most` bytes, that all blocks fit, each with the KB that the system takes.
    fn definitions(self, most: usize) -> Vec<(&'static str, usize)> {
        let tile = ((MULTIPROCESSOR_MEMORY / self.blocks - 1024) & !1023).min(most);
        vec![("SPLIT", self.split), ("MOST", self.most), ("BLOCKS", self.blocks), ("TILE_BYTES", tile)]
    }
}

/// Shared memory of a multiprocessor (of compute capability 9.0), in bytes.
const MULTIPROCESSOR_MEMORY: usize = 228 << 10;
/// Bytes of a tile of sources at most.
const TILE: usize = 8192;
/// Threads of a block that sums at the targets of a leaf.
pub(crate) const LEAF_THREADS: usize = 32;

/// L2P and M2P: a surface to targets.
pub fn l2p_program<K: Kernel, T: Real>() -> Program {
    let definitions = Groups::far::<T>(K::VALUES).definitions(TILE);
    of_kernel::<K, T>("l2p.cu", include_str!("../kernels/l2p.cu"), &definitions, &pairs::<K, T>(), &["from_surface"])
}

/// A file on harmonics in precision `T`.
fn of_harmonics<T: Real>(
    file: &str,
    source: &str,
    definitions: &[(&str, usize)],
    entries: &'static [&'static str],
) -> Program {
    let program = of_precision::<T>(file, source, entries);
    let list: Vec<String> = definitions.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let text: String = list.iter().map(|line| format!("#define {line}\n")).collect();
    Program { name: format!("{} ({})", program.name, list.join(", ")), source: text + &program.source, ..program }
}

/// P2M and P2L by harmonics: `strengths` of a source, sums of `order`.
pub fn p2m_harmonics_program<T: Real>(strengths: usize, order: usize) -> Program {
    let definitions = [("STRENGTHS", strengths), ("LENGTH", order * order)];
    let source = include_str!("../kernels/p2m_harmonics.cu");
    of_harmonics::<T>("p2m_harmonics.cu", source, &definitions, &["to_harmonics"])
}

/// L2P or M2P by harmonics of `order`: `values` of a target.
pub fn l2p_harmonics_program<T: Real>(values: usize, order: usize, m2p: bool) -> Program {
    let groups = Groups::harmonics::<T>(values, m2p);
    // As many harmonics as there are, and two more.
    let all = groups.split * (order * order + 2) * values * size_of::<T>();
    let mut definitions = groups.definitions(all.min(2 * TILE));
    definitions.extend([("VALUES", values), ("ORDER", order), ("SINGULAR", usize::from(m2p))]);
    let source = include_str!("../kernels/l2p_harmonics.cu");
    of_harmonics::<T>("l2p_harmonics.cu", source, &definitions, &["from_harmonics"])
}

/// Threads of a block of `rcr.cu`.
pub(crate) const RCR_THREADS: usize = 256;

/// How translations by rotations are cut into blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RcrShape {
    /// Rows that a block translates at once.
    pub edges: usize,
    /// Blocks that a multiprocessor has room for.
    pub blocks: usize,
    /// Bytes of shared memory that a block asks for.
    pub bytes: usize,
}

impl RcrShape {
    /// For rows of order `p` where a block can have `memory` bytes. More rows at once spare readings of matrices, and a second block works
    /// where one waits for its threads.
    pub fn of<T: Real>(p: usize, memory: usize) -> RcrShape {
        let shape = |edges: usize| {
            // Rows side by side, or one behind the other as they come.
            let numbers = (p * p * (edges + 1)).max(edges * (p * p + p % 2)).next_multiple_of(4);
            let bytes = 2 * numbers * size_of::<T>();
            // Beside them the list of slots, and what the system takes.
            let each = bytes + 4 * (217 + edges) + 1024;
            // Sums of a thread, in words; more leave too few registers for a third block.
            let pairs = p * (p + 1) / 2;
            let sums = 2 * (pairs * edges).div_ceil(RCR_THREADS) * size_of::<T>() / 4;
            RcrShape { edges, blocks: ((memory + 1024) / each).min(if sums > 32 { 2 } else { 3 }), bytes }
        };
        let several = [64, 32, 16, 8].into_iter().map(shape).find(|s| s.blocks > 1);
        several.unwrap_or_else(|| [8, 4, 2].into_iter().map(shape).find(|s| s.blocks > 0).unwrap_or(shape(1)))
    }
}

/// M2M, M2L and L2L by rotations, of harmonics of `order`.
pub fn rcr_program<T: Real>(order: usize, shape: RcrShape) -> Program {
    let RcrShape { edges, blocks, .. } = shape;
    let steps = [("UP", 0), ("ACROSS", 1), ("DOWN", 2)];
    let mut definitions = vec![("ORDER", order), ("EDGES", edges), ("THREADS", RCR_THREADS), ("BLOCKS", blocks.max(1))];
    definitions.extend(steps);
    of_harmonics::<T>("rcr.cu", include_str!("../kernels/rcr.cu"), &definitions, &["rcr_across", "rcr_up", "rcr_down"])
}

/// P2P; in f32 relative to the leaf.
pub fn p2p_program<K: Kernel, T: Real>() -> Program {
    let mut definitions = Groups::near::<T>(K::VALUES).definitions(TILE);
    definitions.push(("FRAMED", usize::from(T::NAME == "f32")));
    of_kernel::<K, T>("p2p.cu", include_str!("../kernels/p2p.cu"), &definitions, &pairs::<K, T>(), &["p2p"])
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
    of_precision::<T>("m2l.cu", include_str!("../kernels/m2l.cu"), &["m2l_table", "m2l_keys", "m2l", "m2l_join"])
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

/// The affine part of locals.
pub fn affine_program<T: Real>() -> Program {
    of_precision::<T>("affine.cu", include_str!("../kernels/affine.cu"), &["separate", "affine_at_targets"])
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
        "root_neighbours",
        "family_neighbours",
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

/// Edge lists of a treecode.
pub(crate) fn treecode() -> Program {
    plain("treecode.cu", include_str!("../kernels/treecode.cu"), &["treecode_count", "treecode_fill"])
}

/// Edges by operator, lists of boxes, the ends of a run.
pub(crate) fn arrange() -> Program {
    let entries = &["edge_keys", "take", "key_starts", "with_edges", "list_boxes", "largest", "scatter", "gather"];
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
        treecode(),
        arrange(),
        multiply_program::<f32>(),
        multiply_program::<f64>(),
        affine_program::<f32>(),
        affine_program::<f64>(),
        m2l_program::<f32>(),
        m2l_program::<f64>(),
        m2l_fourier_program::<f32>(),
        m2l_fourier_program::<f64>(),
    ]
}
