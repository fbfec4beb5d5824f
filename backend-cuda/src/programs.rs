//! The programs: sources of `kernels/`, preceded by definitions and by the recorded kernel.

mod fixed;

pub(crate) use fixed::*;

use crate::compile::Program;
use crate::direct::Shape;
use crate::plane;
use crate::shares::programs::{joint, share_points, shares};
use fmm_kernels::equivalent::{Fill, Lattice};
use fmm_traits::tape::Op;
use fmm_traits::{Member, Real, kernel::MAX_POTENTIALS};

/// `float` or `double`.
pub(crate) fn real<T: Real>() -> &'static str {
    if T::NAME == "f32" { "float" } else { "double" }
}

/// The pair functions of `kernel` as CUDA C. `guarded_pair` tests for r = 0. `bare_pair` leaves the test out, if a zero
/// distance always shows in the result; otherwise it is the same function.
fn pairs<T: Real>(kernel: &Member) -> String {
    let tape = kernel.tape();
    let bare = if tape.shows_zero_root() {
        tape.cuda_unguarded::<T>("bare_pair", "bare_rsqrt")
    } else {
        tape.cuda::<T>("bare_pair")
    };
    format!("#include \"shared/real.cuh\"\n{}{bare}", tape.cuda::<T>("guarded_pair"))
}

/// A program from `source` for `kernel` in precision `T`, with definitions and pair functions in front.
fn of_kernel<T: Real>(
    kernel: &Member,
    file: &str,
    source: &str,
    definitions: &[(&str, usize)],
    pairs: &str,
    entries: &'static [&'static str],
) -> Program {
    let (real, strengths, values) = (real::<T>(), kernel.strengths, kernel.values);
    let mut text = format!("#define REAL {real}\n#define STRENGTHS {strengths}\n#define LINEAR {}\n", kernel.linear());
    text += &format!("#define VALUES {values}\n");
    for (name, value) in definitions {
        text += &format!("#define {name} {value}\n");
    }
    Program {
        name: format!("{file} for {} ({values} values) in {}", kernel.name, T::NAME),
        source: text + pairs + source,
        entries,
        contract: true,
    }
}

/// Direct summation of `kernel` in precision `T`.
pub fn direct_program<T: Real>(kernel: &Member, shape: Shape) -> Program {
    let Shape { block, targets, tile, unroll } = shape;
    let definitions = [("BLOCK", block), ("TARGETS", targets), ("TILE", tile), ("UNROLL", unroll)];
    let source = include_str!("../kernels/direct.cu");
    let entries = &["pack_sources", "pack_targets", "direct_sum", "combine"];
    of_kernel::<T>(kernel, "direct.cu", source, &definitions, &pairs::<T>(kernel), entries)
}

/// The shape of a block that sums at `n` outer or inner points of a box: threads, and points per thread. Few threads
/// are idle, and each thread reads a source once for all its points.
pub(crate) fn surface_shape(n: usize) -> (usize, usize) {
    let threads = 32 * n.div_ceil(256);
    (threads, n.div_ceil(threads))
}

/// P2M and P2L: sources to `n` outer or inner points of a box.
pub fn p2m_program<T: Real>(kernel: &Member, n: usize) -> Program {
    let (threads, each) = surface_shape(n);
    let definitions = [("THREADS", threads), ("EACH", each)];
    let entries = &["to_surface", "net_of_sources", "net_of_children", "add_net"];
    of_kernel::<T>(kernel, "p2m.cu", include_str!("../kernels/p2m.cu"), &definitions, &pairs::<T>(kernel), entries)
}

/// How the targets of a leaf are split into groups for the threads of a block (`group.cuh`). The numbers balance work
/// per thread against blocks per multiprocessor; measured in docs/notes/gpu-performance.md on one H200.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Groups {
    /// Threads that share a target.
    split: usize,
    /// Largest number of targets per thread.
    most: usize,
    /// Blocks per multiprocessor for which the compiler leaves registers.
    blocks: usize,
}

impl Groups {
    /// The groups of P2P. In f32 with up to four values a leaf of 60 points is one group. Functions such as an exponential,
    /// and many strengths, take registers, so that threads have fewer targets.
    pub fn near<T: Real>(kernel: &Member) -> Groups {
        let (split, most, blocks) = match (T::NAME, kernel.values, kernel.tape().any(Op::is_function)) {
            ("f32", 1, _) => (4, 8, 28),
            ("f32", 2..=4, _) => (2, 4, 20),
            ("f32", 5..=12, false) => (4, 4, 14),
            ("f32", 5..=12, true) => (4, 3, 12),
            ("f64", 1, false) => (4, 6, 16),
            ("f64", 1, true) => (4, 4, 20),
            ("f64", 2..=4, false) if kernel.strengths <= 4 => (4, 4, 20),
            ("f64", 2..=4, _) => (2, 2, 20),
            ("f64", 5..=12, false) => (4, 3, 10),
            ("f64", 5..=12, true) => (4, 2, 8),
            _ => (4, 1, 8),
        };
        Groups { split, most, blocks }
    }

    /// The groups of L2P and M2P. Their sources are densities, which need no conversion.
    pub fn far<T: Real>(values: usize) -> Groups {
        let (split, most, blocks) = match (T::NAME, values) {
            ("f32", 1..=4) => (2, 4, 16),
            ("f32", 5..=12) => (4, 3, 12),
            ("f64", 1) => (2, 4, 14),
            ("f64", 2..=4) => (2, 2, 16),
            ("f64", 5..=12) => (4, 2, 8),
            _ => (4, 1, 8),
        };
        Groups { split, most, blocks }
    }

    /// The groups of L2P and M2P by harmonics. In L2P no threads share a target, because they cannot share the
    /// recursion of a column. In M2P threads that share a target take its source boxes in turn.
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

    /// The groups of M2P by polynomials.
    pub fn polynomials<T: Real>(values: usize) -> Groups {
        match (T::NAME, values) {
            ("f32", _) => Groups { split: 1, most: 2, blocks: 20 },
            _ => Groups { split: 1, most: 2, blocks: 16 },
        }
    }

    /// The groups of P2P in the plane, where leaves have some 48 targets.
    pub fn plane<T: Real>(values: usize) -> Groups {
        match (T::NAME, values) {
            ("f32", 1..=2) => Groups { split: 2, most: 4, blocks: 28 },
            ("f32", _) => Groups { split: 2, most: 4, blocks: 18 },
            (_, 1..=2) => Groups { split: 2, most: 4, blocks: 20 },
            _ => Groups { split: 2, most: 3, blocks: 16 },
        }
    }

    /// Targets that a block sums at once.
    pub fn targets(self) -> usize {
        self.grain() * self.most
    }

    /// The *grain*: the targets that a block sums if each thread has one. The work on a leaf grows in steps of one
    /// grain. Example: with 32 threads, 4 of which share a target, the grain is 8.
    pub fn grain(self) -> usize {
        LEAF_THREADS / self.split
    }

    /// Most grains of a group.
    pub fn most(self) -> usize {
        self.most
    }

    /// The definitions for `group.cuh`. The tile of sources is as large as shared memory allows with all blocks
    /// resident, but at most `most` bytes. The system takes 1 KB per block.
    pub fn definitions(self, most: usize) -> Vec<(&'static str, usize)> {
        let tile = ((MULTIPROCESSOR_MEMORY / self.blocks - 1024) & !1023).min(most);
        vec![("SPLIT", self.split), ("MOST", self.most), ("BLOCKS", self.blocks), ("TILE_BYTES", tile)]
    }
}

/// Shared memory of a multiprocessor of compute capability 9.0, in bytes.
const MULTIPROCESSOR_MEMORY: usize = 228 << 10;
/// Largest tile of sources, in bytes.
pub(crate) const MAX_TILE_BYTES: usize = 8192;
/// Threads of a block that sums at the targets of a leaf.
pub(crate) const LEAF_THREADS: usize = 32;

/// L2P and M2P: a surface to targets.
pub fn l2p_program<T: Real>(kernel: &Member) -> Program {
    let definitions = Groups::far::<T>(kernel.values).definitions(MAX_TILE_BYTES);
    of_kernel::<T>(
        kernel,
        "l2p.cu",
        include_str!("../kernels/l2p.cu"),
        &definitions,
        &pairs::<T>(kernel),
        &["from_surface"],
    )
}

/// A program for harmonics in precision `T`.
pub(crate) fn of_harmonics<T: Real>(
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
    // The tile needs room for all harmonics and two more.
    let all = groups.split * (order * order + 2) * values * size_of::<T>();
    let mut definitions = groups.definitions(all.min(2 * MAX_TILE_BYTES));
    definitions.extend([("VALUES", values), ("ORDER", order), ("SINGULAR", usize::from(m2p))]);
    let source = include_str!("../kernels/l2p_harmonics.cu");
    of_harmonics::<T>("l2p_harmonics.cu", source, &definitions, &["from_harmonics"])
}

/// M2P by polynomials of `order`: `values` of a target.
pub fn m2p_polynomials_program<T: Real>(values: usize, order: usize) -> Program {
    let mut definitions = Groups::polynomials::<T>(values).definitions(MAX_TILE_BYTES);
    definitions.extend([("VALUES", values), ("ORDER", order), ("SINGULAR", 1)]);
    let source = include_str!("../kernels/m2p_polynomials.cu");
    of_harmonics::<T>("m2p_polynomials.cu", source, &definitions, &["to_polynomials", "from_polynomials"])
}

/// Threads of a block of `rcr.cu`.
pub(crate) const RCR_THREADS: usize = 256;

/// The shape of the blocks that translate by rotations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RcrShape {
    /// Rows (one per edge) that a block translates at once.
    pub edges: usize,
    /// Blocks that fit on a multiprocessor.
    pub blocks: usize,
    /// Bytes of shared memory per block.
    pub bytes: usize,
}

impl RcrShape {
    /// The shape for rows of order `p` if a block can have `memory` bytes of shared memory. More rows at once read each
    /// matrix less often. A second block keeps the multiprocessor busy while the first waits at a barrier.
    pub fn of<T: Real>(p: usize, memory: usize) -> RcrShape {
        let shape = |edges: usize| {
            // The larger of two layouts: rows interleaved with one place of padding, or one row behind the other.
            let numbers = (p * p * (edges + 1)).max(edges * (p * p + p % 2)).next_multiple_of(4);
            let bytes = 2 * numbers * size_of::<T>();
            // The list of slots, and the 1 KB that the system takes.
            let each = bytes + 4 * (217 + edges) + 1024;
            // Sums held by a thread, in words. Above 32 words, registers suffice for two blocks only.
            let pairs = p * (p + 1) / 2;
            let sums = 2 * (pairs * edges).div_ceil(RCR_THREADS) * size_of::<T>() / 4;
            RcrShape { edges, blocks: ((memory + 1024) / each).min(if sums > 32 { 2 } else { 3 }), bytes }
        };
        let several = [64, 32, 16, 8].into_iter().map(shape).find(|s| s.blocks > 1);
        several.unwrap_or_else(|| [8, 4, 2].into_iter().map(shape).find(|s| s.blocks > 0).unwrap_or(shape(1)))
    }
}

/// Threads of a block of `operators.cu`.
pub(crate) const OPERATOR_THREADS: usize = 128;

/// M2M, M2L and L2L by rotations, of harmonics of `order`.
pub fn rcr_program<T: Real>(order: usize, shape: RcrShape) -> Program {
    let RcrShape { edges, blocks, .. } = shape;
    let steps = [("UP", 0), ("ACROSS", 1), ("DOWN", 2)];
    let mut definitions = vec![("ORDER", order), ("EDGES", edges), ("THREADS", RCR_THREADS), ("BLOCKS", blocks.max(1))];
    definitions.extend(steps);
    of_harmonics::<T>("rcr.cu", include_str!("../kernels/rcr.cu"), &definitions, &["rcr_across", "rcr_up", "rcr_down"])
}

/// Least number of levels for which P2P has rows of units (`levels` in `p2p.cu`). If the targets of a large leaf lie close
/// together, P2P takes the row of a deeper level for them, which the tree need not have. Boxes of the last of 25 levels
/// have 6·10⁻⁸ of the side of the root. All trees have this least number, so that sums on several ranks, whose trees
/// differ, have the same bits.
pub(crate) const NEAR_LEVELS: usize = 25;

/// P2P. In f32, coordinates are taken relative to the leaf or to a small group of its targets (`FRAMED`), and close pairs are summed again in f64 by
/// `exact_pair`.
pub fn p2p_program<T: Real>(kernel: &Member) -> Program {
    let framed = T::NAME == "f32";
    let mut definitions = Groups::near::<T>(kernel).definitions(MAX_TILE_BYTES);
    definitions.extend([("FRAMED", usize::from(framed)), ("LEVELS", NEAR_LEVELS)]);
    let mut functions = pairs::<T>(kernel);
    if framed {
        functions += &kernel.tape().cuda::<f64>("exact_pair");
    }
    of_kernel::<T>(kernel, "p2p.cu", include_str!("../kernels/p2p.cu"), &definitions, &functions, &["p2p"])
}

/// Operators on a `lattice`, evaluated in f64 and rounded to `T`.
pub fn operators_program<T: Real>(kernel: &Member, lattice: Lattice) -> Program {
    let definitions = [("P", lattice.order), ("DIM", lattice.dim), ("THREADS", OPERATOR_THREADS)];
    let source = include_str!("../kernels/operators.cu");
    let entries = &["kernel_matrices", "kernel_spectra"];
    of_kernel::<T>(kernel, "operators.cu", source, &definitions, &pairs::<f64>(kernel), entries)
}

/// A program without a recorded kernel, in precision `T`.
fn of_precision<T: Real>(file: &str, source: &str, entries: &'static [&'static str]) -> Program {
    let source = format!("#define REAL {}\n{source}", real::<T>());
    Program { name: format!("{file} in {}", T::NAME), source, entries, contract: true }
}

/// M2L by dense matrices.
pub fn m2l_program<T: Real>() -> Program {
    of_precision::<T>("m2l.cu", include_str!("../kernels/m2l.cu"), &["m2l_table", "m2l_keys", "m2l", "m2l_join"])
}

/// M2L through Fourier space in `dim` dimensions.
pub fn m2l_fourier_program<T: Real>(dim: usize) -> Program {
    let entries = &["family_kids", "family_around", "family_edges", "operator_numbers", "m2l_product"];
    let program = of_precision::<T>("m2l_fourier.cu", include_str!("../kernels/m2l_fourier.cu"), entries);
    let source = format!("#define DIM {dim}\n{}", program.source);
    Program { name: format!("{} in {dim} dimensions", program.name), source, ..program }
}

/// Bytes of shared memory that a block has by default.
const SHARED_MEMORY: usize = 48 << 10;

/// Boxes per block in the transforms of a lattice. In space they are the 8 children of a family, or 4 if 8 do not fit
/// into shared memory. In the plane they are the lanes of a warp.
pub(crate) fn dft_boxes<T: Real>(Lattice { order: p, dim, .. }: Lattice) -> usize {
    let (side, complex) = (2 * p - 1, if T::NAME == "f32" { 8 } else { 16 });
    let bytes = |boxes: usize| complex * (boxes * p * (p + side) + side) + 4 * boxes;
    match dim {
        2 => 32,
        _ if bytes(8) <= SHARED_MEMORY => 8,
        _ => 4,
    }
}

/// Threads per block in the transforms of a lattice. In space there is one per frequency of a line of each box, in the
/// plane one per point of a line.
pub(crate) fn dft_threads<T: Real>(lattice: Lattice) -> usize {
    let lines = if lattice.dim == 2 { lattice.order } else { 2 * lattice.order - 1 };
    (lines * dft_boxes::<T>(lattice)).next_multiple_of(32)
}

/// Transforms between a `lattice` and its spectra.
pub fn dft_program<T: Real>(lattice: Lattice) -> Program {
    let (p, filled) = (lattice.order, u8::from(lattice.fill == Fill::Volume));
    let (file, source) = match lattice.dim {
        2 => ("dft_plane.cu", include_str!("../kernels/dft_plane.cu")),
        _ => ("dft.cu", include_str!("../kernels/dft.cu")),
    };
    let program = of_precision::<T>(file, source, &["dft_forward", "dft_inverse"]);
    let (boxes, threads) = (dft_boxes::<T>(lattice), dft_threads::<T>(lattice));
    let source = format!(
        "#define P {p}\n#define FILLED {filled}\n#define BOXES {boxes}\n#define THREADS {threads}\n{}",
        program.source
    );
    Program { name: format!("{} of {lattice:?}", program.name), source, ..program }
}

/// Matrix products.
pub fn multiply_program<T: Real>() -> Program {
    of_precision::<T>("multiply.cu", include_str!("../kernels/multiply.cu"), &["multiply", "add_rows", "mirror"])
}

/// The affine part of locals of `values` check values.
pub fn affine_program<T: Real>(values: usize) -> Program {
    let most = if values <= 4 { 4 } else { MAX_POTENTIALS };
    let program = of_precision::<T>("affine.cu", include_str!("../kernels/affine.cu"), &["separate"]);
    let source = format!("#define MOST {most}\n{}", program.source);
    Program { name: format!("{} for {most} components", program.name), source, ..program }
}

/// Every program without a recorded kernel.
pub fn all_programs() -> Vec<Program> {
    vec![
        points(),
        sort(),
        scan(),
        split(),
        lists(),
        treecode(),
        cut(),
        cut_of_pyramid(),
        draw(),
        draw_of_pyramid(),
        thin(),
        arrange(),
        ends(),
        rows(),
        joint(),
        share_points(),
        shares(),
        nodes(),
        plane::pyramid_program(),
        plane::connect_program(),
        multiply_program::<f32>(),
        multiply_program::<f64>(),
        affine_program::<f32>(4),
        affine_program::<f32>(6),
        affine_program::<f64>(4),
        affine_program::<f64>(6),
        m2l_program::<f32>(),
        m2l_program::<f64>(),
        m2l_fourier_program::<f32>(2),
        m2l_fourier_program::<f32>(3),
        m2l_fourier_program::<f64>(2),
        m2l_fourier_program::<f64>(3),
    ]
}
