//! M2L through Fourier space, frequency by frequency.
//!
//! A family is the eight children of a box. At one frequency, M2L from a family to the family of a neighbouring box is
//! a product of an 8×8 matrix of operators with the eight spectra of the sources (Malhotra & Biros 2015, §3.2). The 26
//! matrices of one frequency are put together from the 316 distinct operators. The matrices (40 KB in f64) stay near
//! the first-level cache, and the spectra of all families of the level at that frequency stay in the second-level
//! cache.
//!
//! The eight targets run along the lanes. A source spectrum is broadcast. Four target families share the loads of a
//! matrix. A complex product takes three real products (Gauss): re = Σ a·x − Σ b·y,
//! im = Σ (a + b)·(x + y) − Σ a·x − Σ b·y. Each Σ runs over all sources, so the differences are taken once. That makes
//! 12 fused multiply-adds for 3 loads and 12 broadcasts. The differences cancel: rounding is 1.4 to 1.7 times that of
//! four products, which shows in f32 at high orders only.
//!
//! The sums of a frequency overwrite the spectra of that frequency. A vector wider than a family (16 × f32) holds
//! several frequencies of the family, interleaved.
//!
//! Putting the matrices together takes as long as the sums of about 12 families. So sets of strengths share the
//! matrices on levels of few families.

use super::dft::{Buffers, Dft, frequency};
use super::families::{AROUND, FAMILY, Families, PLACES, POSITIONS, place};
use super::translate::Rows;
use crate::lanes::{Isa, Vectorized, dispatch};
use crate::pool::Pool;
use fmm_kernels::equivalent::spectra::{for_each_spectrum, offsets};
use fmm_kernels::equivalent::{Lattice, Scalar};
use fmm_traits::{Lane, Member, Simd, SimdLane, Tree, member::Identity, tree::NONE};
use rayon::prelude::*;
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

/// The operators of one level, in the order in which the M2L stage reads them.
pub struct Table<T> {
    /// `[group][value][strength][re, im][place of the offset][frequency of the group]`. Adjacent boxes have zeros.
    data: Vec<T>,
    /// Frequencies in a group.
    group: usize,
    values: usize,
    strengths: usize,
}

/// Key of a shared table: kernel, precision, parameters (as bits), order and dimension, instruction set. (Offsets do not
/// depend on the fill of a lattice. A kernel that ignores z has one tape in space and in the plane.)
type Key = (Identity, TypeId, Vec<u64>, [usize; 2], Isa);

impl<T: Scalar> Table<T> {
    /// Packs the spectra of `kernel` with parameters `params` on the unit box.
    pub fn new(kernel: &Member, params: &[f64], dft: &Dft<T>, lattice: Lattice) -> Self {
        let (group, grid) = (dft.group(), dft.grid());
        let (values, strengths) = (kernel.values, kernel.strengths);
        let mut table = Table { data: Vec::new(), group, values, strengths };
        table.data.resize(dft.groups() * values * strengths * table.stride(), T::default());
        let order: Vec<usize> = (0..grid.frequencies()).map(|f| frequency(grid, f)).collect();
        let places: Vec<usize> = offsets().map(place).collect();
        for_each_spectrum(kernel, params, lattice, &mut |o, a, b, spectrum| {
            for (g, frequencies) in order.chunks(group).enumerate() {
                let at = ((g * values + a) * strengths + b) * table.stride() + places[o] * group;
                for (lane, &f) in frequencies.iter().enumerate() {
                    table.data[at + lane] = T::of(spectrum[f].re);
                    table.data[at + PLACES * group + lane] = T::of(spectrum[f].im);
                }
            }
        });
        table
    }

    /// Number of scalars for all operators of one group, value and strength.
    fn stride(&self) -> usize {
        2 * PLACES * self.group
    }

    /// The table that another plan holds for the same key, or else a [`new`](Self::new) table.
    pub fn shared(kernel: &Member, params: &[f64], dft: &Dft<T>, lattice: Lattice, isa: Isa) -> Arc<Self> {
        static TABLES: LazyLock<Mutex<HashMap<Key, Weak<dyn Any + Send + Sync>>>> = LazyLock::new(Mutex::default);
        let bits = params.iter().map(|x| x.to_bits()).collect();
        let key = (kernel.id.clone(), TypeId::of::<T>(), bits, [lattice.order, lattice.dim], isa);
        let tables = || TABLES.lock().unwrap_or_else(PoisonError::into_inner);
        let known = tables().get(&key).and_then(Weak::upgrade).and_then(|t| t.downcast().ok());
        known.unwrap_or_else(|| {
            let table = Arc::new(Self::new(kernel, params, dft, lattice));
            let erased: Arc<dyn Any + Send + Sync> = table.clone();
            let mut tables = tables();
            tables.retain(|_, t| t.strong_count() > 0);
            tables.insert(key, Arc::downgrade(&erased));
            table
        })
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        (self.data.len() * size_of::<T>()) as u64
    }

    /// The operators of one group, value and strength: block `at` of the table.
    fn operators(&self, at: usize) -> &[T] {
        &self.data[at * self.stride()..][..self.stride()]
    }
}

/// Writes the matrices of one group, value and strength, from their [`operators`](Table::operators), as
/// `[position][source][re, im, re + im][target][frequency of the group]`.
struct Matrices<'a, T> {
    operators: &'a [T],
    group: usize,
    to: &'a mut [T],
}

impl<T: Scalar> Vectorized for Matrices<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        debug_assert!(self.group <= 2, "vectors hold at most two frequencies of a family");
        if self.group == 1 { self.write::<2>() } else { self.write::<4>() }
    }
}

impl<T: Scalar> Matrices<'_, T> {
    /// Copies the operators of two targets that lie side by side along x, `PAIR` numbers, at a time.
    #[inline(always)]
    fn write<const PAIR: usize>(self) {
        let (re, im) = self.operators.split_at(PLACES * self.group);
        let columns = POSITIONS.iter().flat_map(|p| &p.first);
        for (to, &first) in self.to.chunks_exact_mut(12 * PAIR).zip(columns) {
            for (k, step) in [0, 7, 49, 56].into_iter().enumerate() {
                let from = (first as usize + step) * self.group;
                let re: [T; PAIR] = std::array::from_fn(|i| re[from..from + PAIR][i]);
                let im: [T; PAIR] = std::array::from_fn(|i| im[from..from + PAIR][i]);
                to[k * PAIR..][..PAIR].copy_from_slice(&re);
                to[(4 + k) * PAIR..][..PAIR].copy_from_slice(&im);
                to[(8 + k) * PAIR..][..PAIR].copy_from_slice(&std::array::from_fn::<T, PAIR, _>(|i| re[i] + im[i]));
            }
        }
    }
}

/// Scratch of one thread.
pub struct Scratch<T> {
    buffers: Buffers<T>,
    matrices: Vec<T>,
    sources: Vec<T>,
}

impl<T: Scalar> Scratch<T> {
    /// Scratch for the transforms of `dft`.
    pub fn new(dft: &Dft<T>) -> Self {
        let matrices = vec![T::default(); AROUND * FAMILY * 3 * FAMILY * dft.group()];
        Scratch { buffers: dft.buffers(), matrices, sources: Vec::new() }
    }
}

/// Number of scalars in the spectra of a level with `families` families, with `components` strengths or values per box.
pub fn spectra_len<T: Scalar>(dft: &Dft<T>, families: usize, components: usize) -> usize {
    dft.groups() * families * components * 2 * FAMILY * dft.group()
}

/// Bytes of spectra up to which sets of strengths share the matrices. It balances memory against the time in which
/// matrices are put together.
const SHARED_BYTES: usize = 1 << 27;

/// Number of sets of strengths whose spectra are held at a time on a level with `families` families, if the largest
/// level has `most` families: as many as fit into the memory of one set on the largest level, or into
/// [`SHARED_BYTES`] if that is more.
pub fn sets_at_once<T: Scalar>(dft: &Dft<T>, components: usize, families: usize, most: usize) -> usize {
    let bytes = |families: usize| spectra_len(dft, families, components) * size_of::<T>();
    (bytes(most).max(SHARED_BYTES) / bytes(families).max(1)).max(1)
}

/// M2L of some sets of strengths on one level. `multipoles` and `locals` are the rows of the boxes of this level, of
/// which `first` is the first box. The stage adds check values to `locals`. `spectra` is a buffer.
pub fn m2l<T: Scalar>(
    tree: &Tree,
    families: &Families,
    table: &Table<T>,
    dft: &Dft<T>,
    isa: Isa,
    scratch: &Pool<Scratch<T>>,
    first: usize,
    sets: Range<usize>,
    (upward, multipoles): (Rows, &[T]),
    (downward, locals): (Rows, &mut [T]),
    spectra: &mut Vec<T>,
) {
    let (values, strengths, points) = (table.values, table.strengths, dft.points());
    // spectra[group][set][row][component][re, im][child][frequency of the group].
    let components = values.max(strengths);
    let block = 2 * FAMILY * table.group;
    let rows = families.parents.len();
    let need = sets.len() * spectra_len(dft, rows, components);
    if spectra.len() < need {
        spectra.resize(need, T::default());
    }
    let spectra = &mut spectra[..need];
    let level = rows * components * block;
    let at = |group: usize, set: usize, row: usize, c: usize| {
        (group * sets.len() + set) * level + (row * components + c) * block
    };
    let together = dft.lanes() / FAMILY;
    let batches = rows.div_ceil(together);
    let tasks = sets.len() * batches;
    // Entry k: the child in octant k % 8 of family k / 8 of a batch of families.
    let members = |batch: usize| {
        let mut boxes = [NONE; 2 * FAMILY];
        for (m, &parent) in families.parents[batch * together..].iter().take(together).enumerate() {
            for b in tree.children(parent as usize) {
                boxes[m * FAMILY + tree.octant[b] as usize] = b as u32;
            }
        }
        boxes
    };

    let shared = Shared(spectra.as_mut_ptr());
    (0..tasks).into_par_iter().for_each(|task| {
        let (set, batch) = (task / batches, task % batches);
        let boxes = members(batch);
        scratch.with(|s| {
            for b in 0..strengths {
                dft.forward(&mut s.buffers, |i, x| {
                    for (x, &source) in x.iter_mut().zip(&boxes) {
                        let value =
                            || multipoles[upward.of(source as usize - first, sets.start + set).start + b * points + i];
                        *x = if source == NONE { T::default() } else { value() };
                    }
                });
                for m in 0..together.min(rows - batch * together) {
                    dft.for_each_block(&s.buffers, m, |g, from| {
                        // SAFETY: this is the block of one set, family and strength, inside `spectra` (`need` above).
                        // Each pair of set and family belongs to one task, so no other task touches the block.
                        unsafe { shared.slice(at(g, set, batch * together + m, b), block) }.copy_from_slice(from);
                    });
                }
            }
        })
    });

    spectra.par_chunks_mut(sets.len() * level).enumerate().for_each(|(group, spectra)| {
        scratch.with(|s| {
            // For each set, re, im and re + im of the sources, and one more row of zeros. The sums overwrite the
            // spectra.
            let (half, column) = (block / 2, block / 2 * 3);
            let of_a_set = (rows + 1) * strengths * column;
            s.sources.resize(sets.len() * of_a_set, T::default());
            for (sources, spectra) in s.sources.chunks_exact_mut(of_a_set).zip(spectra.chunks_exact(level)) {
                let blocks =
                    spectra.chunks_exact(components * block).flat_map(|r| r.chunks_exact(block).take(strengths));
                for (to, from) in sources.chunks_exact_mut(column).zip(blocks) {
                    for k in 0..half {
                        (to[k], to[half + k], to[block + k]) = (from[k], from[half + k], from[k] + from[half + k]);
                    }
                }
                sources[rows * strengths * column..].fill(T::default());
            }
            spectra.fill(T::default());
            for a in 0..values {
                for b in 0..strengths {
                    let operators = table.operators((group * values + a) * strengths + b);
                    dispatch(isa, Matrices { operators, group: table.group, to: &mut s.matrices });
                    let matrices = &s.matrices[..];
                    for (sources, sums) in s.sources.chunks_exact(of_a_set).zip(spectra.chunks_exact_mut(level)) {
                        let (to, from) = (Part { of: components, index: a }, Part { of: strengths, index: b });
                        dispatch(isa, Accumulate { families, matrices, sources, from, sums, to });
                    }
                }
            }
        })
    });

    let (target, numbers) = (Shared(locals.as_mut_ptr()), locals.len());
    (0..tasks).into_par_iter().for_each(|task| {
        let (set, batch) = (task / batches, task % batches);
        let here = batch * together..rows.min((batch + 1) * together);
        if !here.clone().any(|r| families.receives(r)) {
            return;
        }
        // Where the rows of this set begin. The assertion refuses a box that is not of this level.
        let starts = members(batch).map(|t| {
            (t != NONE).then(|| {
                let row = downward.of(t as usize - first, sets.start + set);
                assert!(row.len() >= values * points && row.end <= numbers, "local of box {t}");
                row.start
            })
        });
        scratch.with(|s| {
            for a in 0..values {
                for (m, r) in here.clone().enumerate() {
                    dft.fill_blocks(&mut s.buffers, m, |g| &spectra[at(g, set, r, a)..][..block]);
                }
                dft.inverse(&mut s.buffers, |point, field| {
                    for (start, x) in starts.iter().zip(field) {
                        let Some(start) = start else { continue };
                        // SAFETY: a < values and point < points, so the entry is in the row of the box and this set,
                        // inside `locals` (asserted). Each box is a child of one box (`check_boxes`, of every tree that
                        // a plan takes), and each parent is in one batch (`Families::parents` are numbered once). Rows
                        // of different sets are disjoint (`Rows::of`). So no other task touches the row.
                        unsafe { target.slice(start + a * points + point, 1)[0] += *x };
                    }
                });
            }
        })
    });
}

/// A pointer shared by tasks that write disjoint targets.
struct Shared<T>(*mut T);
// SAFETY: each task writes only its own part (argued where the pointer is used).
unsafe impl<T: Send> Sync for Shared<T> {}
impl<T> Shared<T> {
    /// `len` numbers from `at`.
    ///
    /// # Safety
    /// The range must lie inside the allocation, and no other reference to its numbers may be alive.
    #[allow(clippy::mut_from_ref)]
    unsafe fn slice(&self, at: usize, len: usize) -> &mut [T] {
        // SAFETY: the caller vouches for the range.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(at), len) }
    }
}

/// Component `index` of the `of` components in a row.
struct Part {
    of: usize,
    index: usize,
}

/// Adds, for one group of frequencies, the field of strength `from` of the source families to component `to` of every
/// target family. The arrays are `sources[row][strength][re, im, re + im]` and `sums[row][component][re, im]`.
struct Accumulate<'a, T> {
    families: &'a Families,
    matrices: &'a [T],
    sources: &'a [T],
    from: Part,
    sums: &'a mut [T],
    to: Part,
}

impl<T: Scalar> Vectorized for Accumulate<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        match FAMILY * T::Vector::<S>::REPEAT / T::Vector::<S>::WIDTH {
            1 => self.tiles::<S, 4, 1>(),
            2 => self.tiles::<S, 1, 2>(),
            _ => self.tiles::<S, 1, 8>(),
        }
    }
}

impl<T: Scalar> Accumulate<'_, T> {
    /// Takes `TILE` target families at a time. The targets of a family fill up to `PARTS` vectors.
    #[inline(always)]
    fn tiles<S: Simd, const TILE: usize, const PARTS: usize>(self) {
        type V<S, T> = <T as fmm_traits::Real>::Vector<S>;
        let Accumulate { families, matrices, sources, from: strength, sums, to } = self;
        let (w, repeat) = (V::<S, T>::WIDTH, V::<S, T>::REPEAT);
        let (half, rows, targets) = (FAMILY * repeat, families.parents.len(), &families.targets[..]);
        let parts = half / w;
        let (block, column) = (2 * half, 3 * half);
        assert!(parts <= PARTS && strength.index < strength.of && to.index < to.of);
        assert!(matrices.len() == AROUND * FAMILY * column);
        assert!(sources.len() == (rows + 1) * strength.of * column && sums.len() == rows * to.of * block);
        assert!(families.around.len() == rows && families.present.len() == rows);
        let zero = V::<S, T>::splat(0.0);
        let sources = sources[strength.index * column..].as_ptr();
        for tile in targets.chunks(TILE) {
            // Σ re·x, Σ im·y and Σ (re + im)·(x + y): three real products for a complex product (Gauss).
            let mut sum = [[[zero; PARTS]; 3]; TILE];
            for d in 0..AROUND {
                let mut members = 0;
                let mut from = [sources; TILE];
                for (f, from) in from.iter_mut().enumerate() {
                    let around = families.around[tile[f.min(tile.len() - 1)] as usize][d];
                    // Row `rows` is zero.
                    let row = if around == NONE { rows } else { around as usize };
                    members |= families.present.get(row).copied().unwrap_or(0);
                    // SAFETY: row ≤ rows and strength.index < strength.of, so the column is inside `sources`.
                    *from = unsafe { sources.add(row * strength.of * column) };
                }
                let matrix = matrices[d * FAMILY * column..][..FAMILY * column].as_ptr();
                // A macro, not a closure: only inlined code is compiled for the instruction set.
                macro_rules! add {
                    ($j:expr) => {
                        for part in 0..parts {
                            // SAFETY: j < 8 and part·w < half, so all places are inside `matrix` (8 columns) and
                            // `from`.
                            unsafe {
                                let m = matrix.add($j * column + part * w);
                                let (re, im) = (V::<S, T>::load(m), V::<S, T>::load(m.add(half)));
                                let both = V::<S, T>::load(m.add(2 * half));
                                for f in 0..TILE {
                                    let x = V::<S, T>::repeat(from[f].add($j * repeat));
                                    let y = V::<S, T>::repeat(from[f].add(half + $j * repeat));
                                    let z = V::<S, T>::repeat(from[f].add(block + $j * repeat));
                                    sum[f][0][part] = re.mul_add(x, sum[f][0][part]);
                                    sum[f][1][part] = im.mul_add(y, sum[f][1][part]);
                                    sum[f][2][part] = both.mul_add(z, sum[f][2][part]);
                                }
                            }
                        }
                    };
                }
                if members == 0xff {
                    for j in 0..FAMILY {
                        add!(j);
                    }
                } else {
                    while members != 0 {
                        let j = members.trailing_zeros() as usize;
                        add!(j);
                        members &= members - 1;
                    }
                }
            }
            for (&row, sum) in tile.iter().zip(&sum) {
                let to = &mut sums[(row as usize * to.of + to.index) * block..][..block];
                for part in 0..parts {
                    // SAFETY: part·w < half, and `to` has two halves.
                    unsafe {
                        let re = to.as_mut_ptr().add(part * w);
                        let im = re.add(half);
                        (V::<S, T>::load(re) + (sum[0][part] - sum[1][part])).store(re);
                        (V::<S, T>::load(im) + (sum[2][part] - (sum[0][part] + sum[1][part]))).store(im);
                    }
                }
            }
        }
    }
}
