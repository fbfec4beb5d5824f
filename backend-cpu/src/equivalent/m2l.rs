//! M2L through Fourier space, accumulated family by family (a family is the up to eight children of one
//! box).
//!
//! For W frequencies at a time, the sums of all eight targets of a family stay in registers while
//! the spectra of the source boxes around it stream past; the table of the 316 operators for
//! those W frequencies (40 KB) stays in the first-level cache. Each source vector meets eight operator
//! vectors in 32 fused multiply-adds, so that the stage is bound by arithmetic.
//!
//! Target and source spectra of a level are never all in memory with the targets: families go in batches
//! whose sums are transformed back at once.

use super::dft::{Buffers, Dft, FAMILY, frequency};
use super::pool::Pool;
use crate::lanes::{Isa, Vectorized, dispatch};
use fmm_kernels::equivalent::Scalar;
use fmm_kernels::equivalent::spectra::{OFFSETS, for_each_spectrum, offset_index};
use fmm_traits::{Error, Kernel, Lane, Lists, Simd, SimdLane, Tree, tree::NONE};
use rayon::prelude::*;
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

/// Source positions around a family: 6×6×6 child boxes, its own eight in the middle.
const AROUND: usize = 216;

/// For each source position, which operator takes it to each of the eight targets; `OFFSETS` is the
/// zero operator (adjacent boxes).
fn operator_table() -> Vec<[u32; 8]> {
    (0..AROUND as i32)
        .map(|c| {
            let source = [c / 36 - 2, c / 6 % 6 - 2, c % 6 - 2];
            std::array::from_fn(|i| {
                let target = [i as i32 & 1, i as i32 >> 1 & 1, i as i32 >> 2 & 1];
                let offset = std::array::from_fn(|a| target[a] - source[a]);
                offset_index(offset).unwrap_or(OFFSETS) as u32
            })
        })
        .collect()
}

/// The M2L edges of one level, family by family.
#[derive(Debug, Default)]
pub struct LevelPlan {
    /// Source boxes of the level, the slot of each being its index here.
    pub sources: Vec<u32>,
    /// Target families: parent box.
    parents: Vec<u32>,
    /// `entries[starts[f]..starts[f+1]]`: (slot, position around the family).
    starts: Vec<usize>,
    entries: Vec<(u32, u32)>,
}

/// Arranges the M2L edges of `lists`. An edge this form cannot take (different levels, adjacent or
/// too far, or a family that lacks some of the edges that belong to it) is an error that names it.
pub fn arrange(tree: &Tree, lists: &Lists) -> Result<Vec<LevelPlan>, Error> {
    let mut slot = vec![NONE; tree.len()];
    let table = operator_table();
    (0..tree.levels())
        .map(|level| {
            let boxes = tree.level(level);
            let rows = lists.m2l.starts[boxes.start]..lists.m2l.starts[boxes.end];
            if rows.is_empty() {
                return Ok(LevelPlan::default());
            }
            let Some(above) = level.checked_sub(1) else { return Err(apart(0, lists.m2l.sources[rows.start])) };
            for &s in &lists.m2l.sources[rows] {
                slot[s as usize] = 0;
            }
            let mut plan = LevelPlan::default();
            for b in boxes.clone() {
                if slot[b] == 0 {
                    slot[b] = plan.sources.len() as u32;
                    plan.sources.push(b as u32);
                }
            }
            let parents: Vec<usize> = tree.level(above).filter(|&b| !tree.is_leaf(b)).collect();
            let found: Result<Vec<Vec<(u32, u32)>>, Error> = parents
                .par_iter()
                .with_min_len(64)
                .map(|&parent| family(tree, lists, boxes.clone(), parent, &slot, &table))
                .collect();
            plan.starts.push(0);
            for (parent, entries) in parents.into_iter().zip(found?) {
                if !entries.is_empty() {
                    plan.parents.push(parent as u32);
                    plan.entries.extend(entries);
                    plan.starts.push(plan.entries.len());
                }
            }
            Ok(plan)
        })
        .collect()
}

fn apart(target: u32, source_box: u32) -> Error {
    Error::Edge { what: "Fourier M2L takes boxes of one level, 2 or 3 sides apart".into(), target, source_box }
}

/// The sources around the children of `parent`, in order of position.
fn family(
    tree: &Tree,
    lists: &Lists,
    level: std::ops::Range<usize>,
    parent: usize,
    slot: &[u32],
    table: &[[u32; 8]],
) -> Result<Vec<(u32, u32)>, Error> {
    let base = tree.anchor[parent].map(|x| 2 * x as i64 - 2);
    let mut around = [NONE; AROUND];
    let (mut edges, mut members) = (0, 0u8);
    for t in tree.children(parent) {
        let row = lists.m2l.row(t);
        if row.is_empty() && tree.targets_of(t).is_empty() {
            continue;
        }
        edges += row.len();
        members |= 1 << tree.octant[t];
        for &s in row {
            let at: [i64; 3] = std::array::from_fn(|a| tree.anchor[s as usize][a] as i64 - base[a]);
            let code = at.iter().try_fold(0, |c, &x| (0..6).contains(&x).then_some(6 * c + x as usize));
            match code {
                Some(code)
                    if level.contains(&(s as usize)) && table[code][tree.octant[t] as usize] < OFFSETS as u32 =>
                {
                    around[code] = slot[s as usize];
                }
                _ => return Err(apart(t as u32, s)),
            }
        }
    }
    let entries: Vec<(u32, u32)> = (0..AROUND).filter(|&c| around[c] != NONE).map(|c| (around[c], c as u32)).collect();
    let complete: usize = entries
        .iter()
        .map(|&(_, c)| (0..8).filter(|&i| members >> i & 1 == 1 && table[c as usize][i] < OFFSETS as u32).count())
        .sum();
    if complete != edges {
        let what = format!("a family has {edges} M2L edges where its sources have {complete}");
        return Err(Error::Edge { what, target: parent as u32, source_box: NONE });
    }
    Ok(entries)
}

/// The operators of one level in the order in which the stage reads them.
pub struct Table<T> {
    /// `[chunk][value][strength][operator][re × W, im × W]`; operator [`OFFSETS`] is zero.
    data: Vec<T>,
    width: usize,
    values: usize,
    strengths: usize,
}

/// Kernel and precision, parameters, order, instruction set.
type Key = (TypeId, Vec<u64>, usize, Isa);

impl<T: Scalar> Table<T> {
    /// Packs the spectra of `K` on unit boxes with parameters `params`.
    pub fn new<K: Kernel>(params: &[f64], dft: &Dft<T>, p: usize) -> Self {
        let (width, grid) = (dft.width(), dft.grid());
        let chunks = grid.frequencies().div_ceil(width);
        let stride = (OFFSETS + 1) * 2 * width;
        let (values, strengths) = (K::VALUES, K::STRENGTHS);
        let mut data = vec![T::default(); chunks * values * strengths * stride];
        let order: Vec<usize> = (0..grid.frequencies()).map(|f| frequency(grid, f)).collect();
        for_each_spectrum::<K>(params, p, |o, a, b, spectrum| {
            for (chunk, frequencies) in order.chunks(width).enumerate() {
                let at = ((chunk * values + a) * strengths + b) * stride + o * 2 * width;
                for (lane, &f) in frequencies.iter().enumerate() {
                    data[at + lane] = T::of(spectrum[f].re);
                    data[at + width + lane] = T::of(spectrum[f].im);
                }
            }
        });
        Table { data, width, values, strengths }
    }

    /// [`new`](Self::new), or the same table while another plan holds it.
    pub fn shared<K: Kernel>(params: &[f64], dft: &Dft<T>, p: usize, isa: Isa) -> Arc<Self> {
        static TABLES: LazyLock<Mutex<HashMap<Key, Weak<dyn Any + Send + Sync>>>> = LazyLock::new(Mutex::default);
        let bits = params.iter().map(|x| x.to_bits()).collect();
        let key = (TypeId::of::<(K, T)>(), bits, p, isa);
        let tables = || TABLES.lock().unwrap_or_else(PoisonError::into_inner);
        let known = tables().get(&key).and_then(Weak::upgrade).and_then(|t| t.downcast().ok());
        known.unwrap_or_else(|| {
            let table = Arc::new(Self::new::<K>(params, dft, p));
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
}

/// Scratch of one thread.
pub struct Scratch<T> {
    buffers: Buffers<T>,
    sums: Vec<T>,
}

impl<T: Scalar> Scratch<T> {
    /// Scratch for the transforms of `dft`.
    pub fn new(dft: &Dft<T>) -> Self {
        Scratch { buffers: dft.buffers(), sums: Vec::new() }
    }
}

/// Bytes of sums per batch of families.
const BATCH_BYTES: usize = 4 << 20;

/// M2L on one level: `multipoles` and `locals` are the rows (E·n and `local_len` numbers) of the
/// boxes of this level, the first of which is `first`; `locals` receives check values. `spectra` is
/// a buffer for the source spectra.
pub fn m2l<T: Scalar>(
    tree: &Tree,
    plan: &LevelPlan,
    table: &Table<T>,
    dft: &Dft<T>,
    isa: Isa,
    scratch: &Pool<Scratch<T>>,
    first: usize,
    multipoles: &[T],
    locals: &mut [T],
    row: usize,
    spectra: &mut Vec<T>,
) {
    let (w, points, lanes) = (table.width, dft.points(), dft.lanes());
    let chunks = dft.grid().frequencies().div_ceil(w);
    let (values, strengths) = (table.values, table.strengths);
    let per_source = strengths * 2 * w;
    let slots = plan.sources.len().next_multiple_of(lanes);
    let need = chunks * slots * per_source;
    if spectra.len() < need {
        spectra.resize(need, T::default());
    }

    // Sources → spectra[chunk][slot][strength][re, im], a group of boxes at a time. A group owns
    // lanes·per_source consecutive numbers of every chunk.
    let target = Shared(spectra.as_mut_ptr());
    plan.sources.par_chunks(lanes).enumerate().for_each(|(group, boxes)| {
        scratch.with(|s| {
            for b in 0..strengths {
                dft.forward(&mut s.buffers, |i, x| {
                    for (x, &source) in x.iter_mut().zip(boxes) {
                        *x = multipoles[((source as usize - first) * strengths + b) * points + i];
                    }
                });
                for (chunk, frequencies) in s.buffers.spectrum.chunks(w * 2 * lanes).enumerate() {
                    let at = (chunk * slots + group * lanes) * per_source;
                    // SAFETY: the group's numbers of this chunk, inside `spectra` (need above) and touched by no
                    // other group.
                    let to = unsafe { std::slice::from_raw_parts_mut(target.get().add(at), lanes * per_source) };
                    for k in 0..lanes {
                        let to = &mut to[k * per_source + b * 2 * w..][..2 * w];
                        for (lane, f) in frequencies.chunks_exact(2 * lanes).enumerate() {
                            to[lane] = f[k];
                            to[w + lane] = f[lanes + k];
                        }
                    }
                }
            }
        })
    });
    let spectra = &spectra[..need];

    // Families in batches; a batch owns the locals of its children.
    let per_family = chunks * values * FAMILY * 2 * w;
    let together = lanes / FAMILY;
    let batch = (BATCH_BYTES / (per_family * size_of::<T>())).clamp(4, 64).next_multiple_of(together);
    let operators = operator_table();
    let target = Shared(locals.as_mut_ptr());
    plan.parents.par_chunks(batch).enumerate().for_each(|(i, parents)| {
        scratch.with(|s| {
            s.sums.resize(per_family * batch, T::default());
            let families = i * batch..i * batch + parents.len();
            let job = Accumulate { plan, table, operators: &operators, spectra, slots, families, sums: &mut s.sums };
            dispatch(isa, job);
            for (group, some) in parents.chunks(together).enumerate() {
                for a in 0..values {
                    for (chunk, frequencies) in s.buffers.spectrum.chunks_mut(w * 2 * lanes).enumerate() {
                        for member in 0..some.len() {
                            let at = (chunk * parents.len() + group * together + member) * values + a;
                            let from = &s.sums[at * FAMILY * 2 * w..][..FAMILY * 2 * w];
                            for (lane, x) in frequencies.chunks_exact_mut(2 * lanes).enumerate() {
                                for k in 0..FAMILY {
                                    x[member * FAMILY + k] = from[k * 2 * w + lane];
                                    x[lanes + member * FAMILY + k] = from[k * 2 * w + w + lane];
                                }
                            }
                        }
                    }
                    dft.inverse(&mut s.buffers, |point, field| {
                        for (member, &parent) in some.iter().enumerate() {
                            for t in tree.children(parent as usize) {
                                let at = (t - first) * row + a * points + point;
                                // SAFETY: row of child t of this family, inside `locals`; a box has one parent and a
                                // parent is in one batch, so no other task touches it.
                                unsafe { *target.get().add(at) += field[member * FAMILY + tree.octant[t] as usize] };
                            }
                        }
                    });
                }
            }
        })
    });
}

/// A pointer that tasks with disjoint targets share.
struct Shared<T>(*mut T);
// SAFETY: each task writes only the part it owns (argued where the pointer is used).
unsafe impl<T: Send> Sync for Shared<T> {}
impl<T> Shared<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

/// Sums of the families `families`, `sums[chunk][family][value][target][re, im]`.
struct Accumulate<'a, T> {
    plan: &'a LevelPlan,
    table: &'a Table<T>,
    operators: &'a [[u32; 8]],
    spectra: &'a [T],
    slots: usize,
    families: std::ops::Range<usize>,
    sums: &'a mut [T],
}

impl<T: Scalar> Vectorized for Accumulate<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Table { values, strengths, width, .. } = *self.table;
        let w = T::Vector::<S>::WIDTH;
        assert!(w == width && self.operators.len() == AROUND);
        let stride = (OFFSETS + 1) * 2 * w;
        let count = self.families.len();
        let zero = T::Vector::<S>::splat(0.0);
        let chunks = self.table.data.len() / (values * strengths * stride);
        assert!(self.spectra.len() == chunks * self.slots * strengths * 2 * w);
        assert!(self.sums.len() >= chunks * count * values * 16 * w);
        for chunk in 0..chunks {
            let sources = self.spectra[chunk * self.slots * strengths * 2 * w..].as_ptr();
            for (f, family) in self.families.clone().enumerate() {
                let entries = &self.plan.entries[self.plan.starts[family]..self.plan.starts[family + 1]];
                for a in 0..values {
                    let operators = self.table.data[(chunk * values + a) * strengths * stride..].as_ptr();
                    let mut re = [zero; 8];
                    let mut im = [zero; 8];
                    for &(slot, around) in entries {
                        let row = &self.operators[around as usize];
                        for b in 0..strengths {
                            // SAFETY: slot < slots, b < strengths and row[i] ≤ OFFSETS, so that both loads stay inside
                            // this chunk of `spectra` and of the table (lengths asserted above).
                            unsafe {
                                let s = sources.add((slot as usize * strengths + b) * 2 * w);
                                let (sr, si) = (T::Vector::<S>::load(s), T::Vector::<S>::load(s.add(w)));
                                let minus = -si;
                                for i in 0..8 {
                                    let o = operators.add(b * stride + row[i] as usize * 2 * w);
                                    let (or, oi) = (T::Vector::<S>::load(o), T::Vector::<S>::load(o.add(w)));
                                    re[i] = or.mul_add(sr, oi.mul_add(minus, re[i]));
                                    im[i] = or.mul_add(si, oi.mul_add(sr, im[i]));
                                }
                            }
                        }
                    }
                    let to = self.sums[((chunk * count + f) * values + a) * 16 * w..][..16 * w].as_mut_ptr();
                    for i in 0..8 {
                        // SAFETY: `to` has 16·w entries.
                        unsafe {
                            re[i].store(to.add(i * 2 * w));
                            im[i].store(to.add(i * 2 * w + w));
                        }
                    }
                }
            }
        }
    }
}
