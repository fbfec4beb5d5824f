//! The stages over whole lists, and their clock.
//!
//! Everything below the blocks – M2L, P2L, L2L, L2P, M2P and P2P of a subtree of up to 1024 leaves – runs block by block
//! when P2P is called: locals and sums stay in cache, sums go to the caller's rows once, and there is no array of
//! locals but for the few boxes above the blocks, nor one of values in tree order. The time of these stages is that of all, in the
//! ratio of what each took on its threads.

use super::m2l::M2l;
use super::near::{Charged, Gathered, HarmonicPair, LogarithmPair, PairKernel, VALUES, pairs};
use super::points::{Frame, FromPoints, ToPoints};
use super::rows::{Rows, fetch};
use super::shifts::{Down, Shifts, Up};
use super::{LaurentPlan, LaurentWorkspace};
use crate::lanes::dispatch;
use adaptive2d::pyramid::level_start;
use adaptive2d::{PlaneKernel, Pyramid};
use fmm_traits::{Error, Expansion, Lists, Stage, StageSeconds, Stages};
use rayon::prelude::*;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Boxes a task takes.
const TASK: usize = 64;
/// Most levels from the leaves up to the blocks within which P2P serves both directions: 1024 leaves.
const BLOCK_LEVELS: usize = 5;
/// Level of the blocks at which there are enough of them for many threads.
const BLOCKS: usize = 2;

/// Points a task of the scatter takes.
const RUN: usize = 4096;
/// One application of a plan.
pub(super) struct Run<'a> {
    pub plan: &'a LaurentPlan,
    pub w: &'a mut LaurentWorkspace,
    pub strengths: &'a [f64],
    pub out: &'a mut [f64],
    pub seconds: StageSeconds,
}

/// Gives `v` the length `n`; what it holds is anything.
fn zeros(v: &mut Vec<f64>, n: usize) {
    if v.capacity() < n {
        // Zeros of a new allocation are those of untouched pages.
        *v = vec![0.0; n];
    } else {
        v.resize(n, 0.0);
    }
}

/// Sums of some targets, one array a number.
#[derive(Default)]
struct Sums([Vec<f64>; VALUES]);

impl Sums {
    /// `n` zeros in each of the arrays.
    fn clear(&mut self, n: usize) {
        for v in &mut self.0 {
            v.clear();
            v.resize(n, 0.0);
        }
    }
}

fn frame(pyramid: &Pyramid, b: usize) -> Frame {
    Frame { center: pyramid.center[b], scale: pyramid.scale(b) }
}

impl Run<'_> {
    /// Runs a stage and adds its time.
    fn timed(&mut self, stage: Stage, work: impl FnOnce(&mut Self)) -> Result<(), Error> {
        let start = Instant::now();
        work(self);
        self.seconds[stage as usize] += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn row(&self) -> usize {
        self.plan.series.multipole_len()
    }

    /// Level of the blocks.
    fn blocks(&self) -> usize {
        let depth = self.plan.pyramid.depth();
        depth - BLOCK_LEVELS.min(depth.saturating_sub(BLOCKS))
    }

    /// All that is left below the blocks, block by block.
    fn below<K: PairKernel>(&mut self, lists: &Lists) {
        let rows = Rows::new(self.out, self.plan.values(), self.plan.series.kernel);
        let (plan, w, top) = (self.plan, &*self.w, self.blocks());
        let charged = charged(plan, &w.strengths);
        let pyramid = &plan.pyramid;
        let first = level_start(pyramid.depth());
        let clock = Clock::default();
        let start = Instant::now();
        pyramid.level(top).into_par_iter().with_max_len(1).for_each_init(Scratch::default, |scratch, block| {
            locals(plan, lists, w, &charged, top, block, scratch, &clock);
            let leaves = pyramid.leaves_of(block);
            let leaves = leaves.start + first..leaves.end + first;
            let targets = pyramid.targets_of(block);
            scratch.sums.clear(targets.len());
            clock.add(Stage::L2p, || leaves.clone().for_each(|leaf| l2p_leaf(plan, lists, leaf, &leaves, scratch)));
            clock.add(Stage::M2p, || {
                leaves.clone().for_each(|leaf| m2p_leaf(plan, lists, w, leaf, targets.start, scratch))
            });
            clock.add(Stage::P2p, || {
                leaves.clone().for_each(|leaf| p2p_leaf::<K>(plan, lists, &charged, leaf, &leaves, scratch));
                // SAFETY: the order is a permutation of the rows (`Pyramid::check` in `LaurentPlan::new`, and `apply` checks
                // their number), and the targets of a block are those of one task: those of leaves follow each other.
                unsafe { rows.set(&pyramid.targets.order, targets, &scratch.sums.0) };
            });
        });
        clock.share(start.elapsed().as_secs_f64(), &mut self.seconds);
    }
}

/// What each stage took on all threads, in nanoseconds.
#[derive(Default)]
struct Clock([AtomicU64; Stage::ALL.len()]);

impl Clock {
    /// Does `work`, which belongs to `stage`.
    fn add(&self, stage: Stage, work: impl FnOnce()) {
        let start = Instant::now();
        work();
        self.0[stage as usize].fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    /// Adds `elapsed` to `seconds`, in the ratio of the stages.
    fn share(self, elapsed: f64, seconds: &mut StageSeconds) {
        let all = self.0.map(|c| c.into_inner() as f64);
        let unit = elapsed / all.iter().sum::<f64>().max(1.0);
        seconds.iter_mut().zip(all).for_each(|(s, nanoseconds)| *s += unit * nanoseconds);
    }
}

/// Locals of the leaves of `block`, a box of level `top`, from those of its parent: level by level down.
fn locals(
    plan: &LaurentPlan,
    lists: &Lists,
    w: &LaurentWorkspace,
    charged: &Charged,
    top: usize,
    block: usize,
    scratch: &mut Scratch,
    clock: &Clock,
) {
    let row = plan.series.local_len();
    for level in top..=plan.pyramid.depth() {
        let k = (block - level_start(top)) << (2 * (level - top));
        let boxes = level_start(level) + k..level_start(level) + k + (1 << (2 * (level - top)));
        std::mem::swap(&mut scratch.locals, &mut scratch.parents);
        // M2L sets every row.
        zeros(&mut scratch.locals, boxes.len() * row);
        let Scratch { locals, parents, .. } = &mut *scratch;
        clock.add(Stage::M2l, || m2l(plan, lists, &w.multipoles, boxes.clone(), locals));
        clock.add(Stage::P2l, || p2l(plan, lists, charged, boxes.clone(), locals));
        // The rows of the level above, of which the first is that of the parent of the first box.
        let (from, first) = if level == top { (&w.locals, 0) } else { (&*parents, (boxes.start - 1) / 4) };
        clock.add(Stage::L2l, || l2l(plan, lists, from, first, boxes, locals));
    }
}

/// Multipoles into the locals of `boxes`, which are set.
fn m2l(plan: &LaurentPlan, lists: &Lists, multipoles: &[f64], boxes: Range<usize>, locals: &mut [f64]) {
    dispatch(
        plan.isa,
        M2l {
            pyramid: &plan.pyramid,
            edges: &lists.m2l,
            hankel: &plan.hankel,
            terms: &plan.terms,
            multipoles,
            targets: boxes,
            locals,
            logarithms: plan.logarithms(),
        },
    );
}

/// Sources into the locals of `boxes`.
fn p2l(plan: &LaurentPlan, lists: &Lists, charged: &Charged, boxes: Range<usize>, locals: &mut [f64]) {
    for (b, row) in boxes.zip(locals.chunks_exact_mut(plan.series.local_len())) {
        for &s in lists.p2l.row(b) {
            let sources = part(charged, plan.pyramid.sources_of(s as usize));
            let frame = frame(&plan.pyramid, b);
            dispatch(plan.isa, FromPoints::<true> { kernel: plan.series.kernel, frame, sources, row });
        }
    }
}

/// The locals `from`, of box `first` and those behind it, into those of `boxes`, the rows of `to`.
fn l2l(plan: &LaurentPlan, lists: &Lists, from: &[f64], first: usize, boxes: Range<usize>, to: &mut [f64]) {
    dispatch(
        plan.isa,
        Shifts::<Down> {
            pyramid: &plan.pyramid,
            edges: &lists.l2l,
            order: plan.series.order,
            from,
            first,
            boxes,
            to,
            _a: PhantomData,
        },
    );
}

/// Targets of `leaf` and their sums, in a block whose first target is `start`.
fn part_of<'a>(
    pyramid: &'a Pyramid,
    leaf: usize,
    start: usize,
    sums: &'a mut Sums,
) -> ([&'a [f64]; 2], [&'a mut [f64]; VALUES]) {
    let own = pyramid.targets_of(leaf);
    let inside = own.start - start..own.end - start;
    let at = [&pyramid.targets.x[own.clone()], &pyramid.targets.y[own]];
    (at, sums.0.each_mut().map(|v| &mut v[inside.clone()]))
}

fn l2p_leaf(plan: &LaurentPlan, lists: &Lists, leaf: usize, leaves: &Range<usize>, scratch: &mut Scratch) {
    if lists.l2p.row(leaf).is_empty() {
        return;
    }
    let length = plan.series.local_len();
    let start = plan.pyramid.targets_of(leaves.start).start;
    let (at, out) = part_of(&plan.pyramid, leaf, start, &mut scratch.sums);
    let (frame, row) = (frame(&plan.pyramid, leaf), &scratch.locals[(leaf - leaves.start) * length..][..length]);
    if plan.series.gradient {
        dispatch(plan.isa, ToPoints::<false, true> { frame, row, at, out, logarithms: false });
    } else {
        dispatch(plan.isa, ToPoints::<false, false> { frame, row, at, out, logarithms: false });
    }
}

fn m2p_leaf(plan: &LaurentPlan, lists: &Lists, w: &LaurentWorkspace, leaf: usize, start: usize, scratch: &mut Scratch) {
    let (length, logarithms) = (plan.series.multipole_len(), plan.logarithms());
    for s in lists.m2p.row(leaf).iter().map(|&s| s as usize) {
        let (at, out) = part_of(&plan.pyramid, leaf, start, &mut scratch.sums);
        let (frame, row) = (frame(&plan.pyramid, s), &w.multipoles[s * length..][..length]);
        if plan.series.gradient {
            dispatch(plan.isa, ToPoints::<true, true> { frame, row, at, out, logarithms });
        } else {
            dispatch(plan.isa, ToPoints::<true, false> { frame, row, at, out, logarithms });
        }
    }
}

/// Locals of one level of a block and of the level above, sums of the block, and the sources of one leaf within its block and
/// beyond.
#[derive(Default)]
struct Scratch {
    locals: Vec<f64>,
    parents: Vec<f64>,
    one_way: Gathered,
    both_ways: Gathered,
    partners: Vec<usize>,
    sums: Sums,
}

/// Strengths in tree order beside the sources.
fn charged<'a>(plan: &'a LaurentPlan, strengths: &'a [Vec<f64>; 2]) -> Charged<'a> {
    let sources = &plan.pyramid.sources;
    Charged { at: [&sources.x, &sources.y], strengths: strengths.each_ref().map(|s| &s[..]) }
}

fn part<'a>(all: &Charged<'a>, range: Range<usize>) -> Charged<'a> {
    let cut = |a: &'a [f64]| if a.is_empty() { a } else { &a[range.clone()] };
    Charged { at: all.at.map(cut), strengths: all.strengths.map(cut) }
}

/// P2P into `leaf`, of the block of `leaves`; where targets are the sources, also
/// from `leaf` into the later leaves of the block that it meets.
fn p2p_leaf<K: PairKernel>(
    plan: &LaurentPlan,
    lists: &Lists,
    charged: &Charged,
    leaf: usize,
    leaves: &Range<usize>,
    scratch: &mut Scratch,
) {
    let pyramid = &plan.pyramid;
    let start = pyramid.targets_of(leaves.start).start;
    let Scratch { one_way, both_ways, partners, sums, .. } = scratch;
    one_way.clear();
    both_ways.clear();
    partners.clear();
    let mutual = |s: usize| {
        pyramid.same_points() && s != leaf && leaves.contains(&s) && lists.p2p.row(s).contains(&(leaf as u32))
    };
    for s in lists.p2p.row(leaf).iter().map(|&s| s as usize) {
        if !mutual(s) {
            one_way.push(charged, pyramid.sources_of(s));
        } else if s > leaf {
            both_ways.push(charged, pyramid.sources_of(s));
            partners.push(s);
        }
    }
    one_way.finish(|_| false);
    both_ways.finish(K::adds);
    let own = pyramid.targets_of(leaf);
    let (at, mut out) = part_of(pyramid, leaf, start, sums);
    let targets = Charged { at, strengths: [&[], &[]] };
    pairs::<K, false>(plan.isa, plan.rough, targets, one_way, out.each_mut().map(|v| &mut **v));
    if partners.is_empty() {
        return;
    }
    pairs::<K, true>(plan.isa, plan.rough, part(charged, own), both_ways, out);
    for c in (0..VALUES).filter(|&c| K::adds(c)) {
        let mut values = both_ways.values(c);
        for &s in partners.iter() {
            let range = pyramid.sources_of(s);
            let (mine, rest) = values.split_at(range.len());
            let to = &mut sums.0[c][range.start - start..range.end - start];
            to.iter_mut().zip(mine).for_each(|(to, x)| *to += x);
            values = rest;
        }
    }
}

impl Stages for Run<'_> {
    type Lists = Lists;

    fn levels(&self) -> usize {
        self.plan.pyramid.depth() + 1
    }

    fn scatter(&mut self) -> Result<(), Error> {
        self.timed(Stage::Scatter, |r| {
            let sources = &r.plan.pyramid.sources;
            let (count, strengths) = (r.plan.series.strengths(), r.strengths);
            // Imaginary parts that are all zero are left out: half the work of a pair.
            let complex = count == 2 && strengths.chunks_exact(2).any(|s| s[1] != 0.0);
            let [re, im] = &mut r.w.strengths;
            zeros(re, sources.len());
            zeros(im, if complex { sources.len() } else { 0 });
            let row = |order: &[u32], i: usize| {
                fetch(strengths.as_ptr(), order, i, count);
                &strengths[count * order[i] as usize..]
            };
            let runs = sources.order.par_chunks(RUN).zip(re.par_chunks_mut(RUN));
            if complex {
                runs.zip(im.par_chunks_mut(RUN)).for_each(|((order, re), im)| {
                    for (i, to) in re.iter_mut().zip(im).enumerate() {
                        let from = row(order, i);
                        (*to.0, *to.1) = (from[0], from[1]);
                    }
                });
            } else {
                runs.for_each(|(order, re)| re.iter_mut().enumerate().for_each(|(i, to)| *to = row(order, i)[0]));
            }
            // Rows are cleared by the first stage that writes them, while they are in cache.
            let (row, top) = (r.plan.series.multipole_len(), r.blocks());
            zeros(&mut r.w.multipoles, r.plan.pyramid.len() * row);
            zeros(&mut r.w.locals, level_start(top) * row);
        })
    }

    fn p2m(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::P2m, |r| {
            let (plan, row) = (r.plan, r.row());
            let first = level_start(plan.pyramid.depth());
            let LaurentWorkspace { strengths, multipoles, .. } = &mut *r.w;
            let all = charged(plan, strengths);
            multipoles[first * row..].par_chunks_mut(row).enumerate().with_min_len(TASK).for_each(|(k, multipole)| {
                multipole.fill(0.0);
                for &s in lists.p2m.row(first + k) {
                    let s = s as usize;
                    dispatch(
                        plan.isa,
                        FromPoints::<false> {
                            kernel: plan.series.kernel,
                            frame: frame(&plan.pyramid, s),
                            sources: part(&all, plan.pyramid.sources_of(s)),
                            row: multipole,
                        },
                    );
                }
            });
        })
    }

    fn m2m(&mut self, lists: &Lists, level: usize) -> Result<(), Error> {
        self.timed(Stage::M2m, |r| {
            let (plan, row) = (r.plan, r.row());
            let boxes = plan.pyramid.level(level);
            if level == plan.pyramid.depth() {
                return;
            }
            let (to, from) = r.w.multipoles.split_at_mut(boxes.end * row);
            to[boxes.start * row..].par_chunks_mut(TASK * row).enumerate().for_each(|(i, to)| {
                to.fill(0.0);
                let start = boxes.start + i * TASK;
                dispatch(
                    plan.isa,
                    Shifts::<Up> {
                        pyramid: &plan.pyramid,
                        edges: &lists.m2m,
                        order: plan.series.order,
                        from,
                        first: boxes.end,
                        boxes: start..start + to.len() / row,
                        to,
                        _a: PhantomData,
                    },
                );
            });
        })
    }

    /// Of the boxes above the blocks; the others are enqueued for [`p2p`](Stages::p2p).
    fn m2l(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::M2l, |r| {
            let (plan, row) = (r.plan, r.row());
            let LaurentWorkspace { multipoles, locals, .. } = &mut *r.w;
            locals.par_chunks_mut(TASK * row).enumerate().for_each(|(i, locals)| {
                m2l(plan, lists, multipoles, i * TASK..i * TASK + locals.len() / row, locals);
            });
        })
    }

    /// As for [`m2l`](Stages::m2l).
    fn p2l(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::P2l, |r| {
            let (plan, row) = (r.plan, r.row());
            let LaurentWorkspace { strengths, locals, .. } = &mut *r.w;
            let all = charged(plan, strengths);
            locals.par_chunks_mut(TASK * row).enumerate().for_each(|(i, locals)| {
                p2l(plan, lists, &all, i * TASK..i * TASK + locals.len() / row, locals);
            });
        })
    }

    /// As for [`m2l`](Stages::m2l).
    fn l2l(&mut self, lists: &Lists, level: usize) -> Result<(), Error> {
        if level >= self.blocks() {
            return Ok(());
        }
        self.timed(Stage::L2l, |r| {
            let (plan, row) = (r.plan, r.row());
            let boxes = plan.pyramid.level(level);
            let (from, to) = r.w.locals.split_at_mut(boxes.start * row);
            to[..boxes.len() * row].par_chunks_mut(TASK * row).enumerate().for_each(|(i, to)| {
                let start = boxes.start + i * TASK;
                l2l(plan, lists, from, 0, start..start + to.len() / row, to);
            });
        })
    }

    /// Enqueued for [`p2p`](Stages::p2p).
    fn l2p(&mut self, _: &Lists) -> Result<(), Error> {
        Ok(())
    }

    /// Enqueued for [`p2p`](Stages::p2p).
    fn m2p(&mut self, _: &Lists) -> Result<(), Error> {
        Ok(())
    }

    fn p2p(&mut self, lists: &Lists) -> Result<(), Error> {
        let real = self.w.strengths[1].is_empty();
        match (self.plan.series.kernel, self.plan.series.gradient, real) {
            (PlaneKernel::Harmonic, false, false) => self.below::<HarmonicPair<2, false>>(lists),
            (PlaneKernel::Harmonic, true, false) => self.below::<HarmonicPair<2, true>>(lists),
            (PlaneKernel::Harmonic, false, true) => self.below::<HarmonicPair<1, false>>(lists),
            (PlaneKernel::Harmonic, true, true) => self.below::<HarmonicPair<1, true>>(lists),
            (PlaneKernel::Laplace, false, _) => self.below::<LogarithmPair<false>>(lists),
            (PlaneKernel::Laplace, true, _) => self.below::<LogarithmPair<true>>(lists),
        }
        Ok(())
    }

    /// Done with the sums of each block.
    fn gather(&mut self) -> Result<(), Error> {
        Ok(())
    }
}
