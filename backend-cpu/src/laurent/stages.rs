//! The stages of the method in the plane, over whole lists, with their times.
//!
//! A *block* is a subtree of up to 1024 leaves. The steps of the schedule are the stages down to the boxes above the
//! blocks, then one fused step, block by block: M2L, P2L and L2L into the boxes of the block, L2P, M2P, P2P and Gather.
//! Locals and sums of a block stay in cache, and sums go to the caller's rows once. Only the few boxes above the blocks
//! have an array of locals, and there is no array of values in tree order. The wall time of the fused step is divided
//! among its stages in the ratio of their times on all threads.

use super::blocks::each_block;
use super::m2l::M2l;
use super::near::{Charged, Gathered, Loops, STRENGTHS, VALUES};
use super::points::{Frame, Series, from_points, to_points};
use super::rows::{Rows, fetch};
use super::shifts::{Down, Shifts, Up};
use super::{LaurentPlan, LaurentWorkspace};
use crate::lanes::dispatch;
use adaptive2d::Pyramid;
use adaptive2d::pyramid::level_start;
use fmm_traits::{Error, Expansion, Lists, Progress, Schedule, Stage, StageSeconds, Step};
use rayon::prelude::*;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Boxes per task.
const BOXES_PER_TASK: usize = 64;
/// Most levels from the root of a block down to its leaves: 4⁵ = 1024 leaves.
const BLOCK_LEVELS: usize = 5;
/// Blocks of a deep pyramid begin at this level or below, so that there are enough blocks for many threads.
const MIN_BLOCK_LEVEL: usize = 2;
/// Points per task of the scatter.
const POINTS_PER_TASK: usize = 4096;

/// One application of a plan.
pub(super) struct Run<'a> {
    pub plan: &'a LaurentPlan,
    pub w: &'a mut LaurentWorkspace,
    pub strengths: &'a [f64],
    pub out: &'a mut [f64],
    pub seconds: StageSeconds,
}

/// Gives `v` the length `n`. The contents are arbitrary.
fn zeros(v: &mut Vec<f64>, n: usize) {
    if v.capacity() < n {
        // A new allocation of zeros is cheap: its pages are untouched.
        *v = vec![0.0; n];
    } else {
        v.resize(n, 0.0);
    }
}

/// The caller's rows of strengths.
struct Strengths<'a> {
    rows: &'a [f64],
    width: usize,
}

impl Strengths<'_> {
    /// Copies the first `W` strengths of the sources in `order` to one array each.
    fn scatter<const W: usize>(&self, order: &[u32], to: [&mut [f64]; W]) {
        for (i, &source) in order.iter().enumerate() {
            fetch(self.rows.as_ptr(), order, i, self.width);
            let from = &self.rows[self.width * source as usize..][..W];
            for c in 0..W {
                to[c][i] = from[c];
            }
        }
    }
}

/// Sums at some targets, one array per value.
#[derive(Default)]
struct Sums([Vec<f64>; VALUES]);

impl Sums {
    /// Sets each array to `n` zeros.
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
    fn timed(&mut self, stage: Stage, work: impl FnOnce(&mut Self)) {
        let start = Instant::now();
        work(self);
        self.seconds[stage as usize] += start.elapsed().as_secs_f64();
    }

    fn row(&self) -> usize {
        self.plan.series.multipole_len()
    }

    /// Level of the roots of the blocks.
    fn blocks(&self) -> usize {
        let depth = self.plan.pyramid.depth();
        depth - BLOCK_LEVELS.min(depth.saturating_sub(MIN_BLOCK_LEVEL))
    }

    /// Runs the rest of the far field and P2P of all blocks, block by block, and writes the sums to the caller's rows.
    fn below(&mut self, lists: &Lists, progress: &mut Progress) -> Result<(), Error> {
        let rows = Rows::new(self.out, self.plan.values(), self.plan.series.kernel);
        let (plan, w, top) = (self.plan, &*self.w, self.blocks());
        let real = self.w.real;
        let loops = plan.pairs.loops(plan.series.derivatives, real);
        let charged = charged(plan, &w.strengths);
        let pyramid = &plan.pyramid;
        let first = level_start(pyramid.depth());
        let clock = Clock::default();
        let start = Instant::now();
        let block = |scratch: &mut Scratch, block: usize| {
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
                leaves.clone().for_each(|leaf| p2p_leaf(plan, lists, loops, &charged, leaf, &leaves, scratch));
            });
            // SAFETY: the order is a permutation of the rows (`Pyramid::check` in `LaurentPlan::new`), and `apply`
            // checks the number of rows. The targets of a block belong to one call, because the targets of successive
            // leaves follow each other, and every block is done once.
            clock.add(Stage::Gather, || unsafe { rows.set(&pyramid.targets.order, targets, &scratch.sums.0) });
        };
        let done = each_block(pyramid.level(top), block, progress);
        clock.share(start.elapsed().as_secs_f64(), &mut self.seconds);
        done
    }
}

/// Time of each stage, summed over all threads, in nanoseconds.
#[derive(Default)]
struct Clock([AtomicU64; Stage::ALL.len()]);

impl Clock {
    /// Runs `work` and adds its time to `stage`.
    fn add(&self, stage: Stage, work: impl FnOnce()) {
        let start = Instant::now();
        work();
        self.0[stage as usize].fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    /// Divides `elapsed` among the stages in the ratio of their times, and adds the parts to `seconds`.
    fn share(self, elapsed: f64, seconds: &mut StageSeconds) {
        let all = self.0.map(|c| c.into_inner() as f64);
        let unit = elapsed / all.iter().sum::<f64>().max(1.0);
        seconds.iter_mut().zip(all).for_each(|(s, nanoseconds)| *s += unit * nanoseconds);
    }
}

/// Computes the locals of the leaves of `block`, a box of level `top`, level by level down from the parent of `block`.
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
        // The rows of the level above, and the box of the first row: the parent of the first box of this level.
        let (from, first) = if level == top { (&w.locals, 0) } else { (&*parents, (boxes.start - 1) / 4) };
        clock.add(Stage::L2l, || l2l(plan, lists, from, first, boxes, locals));
    }
}

/// M2L into `boxes`. Overwrites `locals`, the rows of these boxes.
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

/// P2L into `boxes`. Adds to `locals`, the rows of these boxes.
fn p2l(plan: &LaurentPlan, lists: &Lists, charged: &Charged, boxes: Range<usize>, locals: &mut [f64]) {
    for (b, row) in boxes.zip(locals.chunks_exact_mut(plan.series.local_len())) {
        for &s in lists.p2l.row(b) {
            let sources = part(charged, plan.pyramid.sources_of(s as usize));
            from_points::<true>(plan.isa, plan.series.kernel, frame(&plan.pyramid, b), sources, row);
        }
    }
}

/// L2L into `boxes`. Adds to `to`, the rows of these boxes. `from` begins with the row of box `first`.
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

/// The coordinates of the targets of `leaf`, and their sums. `start` is the first target of the block of `sums`.
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
    let series = Series { frame, row, at, out, logarithms: false };
    to_points::<false>(plan.isa, plan.series.derivatives, series);
}

fn m2p_leaf(plan: &LaurentPlan, lists: &Lists, w: &LaurentWorkspace, leaf: usize, start: usize, scratch: &mut Scratch) {
    let (length, logarithms) = (plan.series.multipole_len(), plan.logarithms());
    for s in lists.m2p.row(leaf).iter().map(|&s| s as usize) {
        let (at, out) = part_of(&plan.pyramid, leaf, start, &mut scratch.sums);
        let (frame, row) = (frame(&plan.pyramid, s), &w.multipoles[s * length..][..length]);
        to_points::<true>(plan.isa, plan.series.derivatives, Series { frame, row, at, out, logarithms });
    }
}

/// Scratch of one thread: locals of one level of a block and of the level above, sums of the block, and the sources of
/// one leaf.
#[derive(Default)]
struct Scratch {
    locals: Vec<f64>,
    parents: Vec<f64>,
    /// Sources that act on the leaf only.
    one_way: Gathered,
    /// Sources that act on the leaf and receive from it.
    both_ways: Gathered,
    /// The leaves of `both_ways`.
    partners: Vec<usize>,
    sums: Sums,
}

/// The sources with their strengths, in tree order.
fn charged<'a>(plan: &'a LaurentPlan, strengths: &'a [Vec<f64>; STRENGTHS]) -> Charged<'a> {
    let sources = &plan.pyramid.sources;
    Charged { at: [&sources.x, &sources.y], strengths: strengths.each_ref().map(|s| &s[..]) }
}

fn part<'a>(all: &Charged<'a>, range: Range<usize>) -> Charged<'a> {
    let cut = |a: &'a [f64]| if a.is_empty() { a } else { &a[range.clone()] };
    Charged { at: all.at.map(cut), strengths: all.strengths.map(cut) }
}

/// P2P into `leaf`, a leaf of the block of `leaves`. If targets are the sources, P2P also goes from `leaf` into its
/// later partners in the block.
fn p2p_leaf(
    plan: &LaurentPlan,
    lists: &Lists,
    loops: &Loops,
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
    both_ways.finish(|c| loops.adds(c));
    let own = pyramid.targets_of(leaf);
    let (at, mut out) = part_of(pyramid, leaf, start, sums);
    let targets = Charged { at, strengths: [&[]; STRENGTHS] };
    (loops.one_way)(plan.isa, plan.rough, targets, one_way, out.each_mut().map(|v| &mut **v));
    if partners.is_empty() {
        return;
    }
    (loops.both_ways)(plan.isa, plan.rough, part(charged, own), both_ways, out);
    for c in (0..VALUES).filter(|&c| loops.adds(c)) {
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

impl Run<'_> {
    fn scatter(&mut self) {
        let (kernel, strengths) = (self.plan.series.kernel, self.strengths);
        let sources = &self.plan.pyramid.sources;
        // Imaginary parts are left out if all are zero, which halves the work of a pair.
        self.w.real = self.plan.pairs.is_real(strengths);
        let used = kernel.places(self.w.real);
        for (place, to) in self.w.strengths.iter_mut().enumerate() {
            zeros(to, if used.contains(&place) { sources.len() } else { 0 });
        }
        let mut parts = self.w.strengths.each_mut().map(|to| to.chunks_mut(POINTS_PER_TASK));
        let tasks = sources.order.chunks(POINTS_PER_TASK);
        let tasks = tasks.map(|order| (order, parts.each_mut().map(|p| p.next().unwrap_or_default())));
        let rows = Strengths { rows: strengths, width: kernel.strengths() };
        tasks.collect::<Vec<_>>().into_par_iter().for_each(|(order, [charges, re, im])| {
            match (used.start, used.len()) {
                (0, 1) => rows.scatter(order, [charges]),
                (0, 2) => rows.scatter(order, [charges, re]),
                (0, _) => rows.scatter(order, [charges, re, im]),
                (_, 1) => rows.scatter(order, [re]),
                _ => rows.scatter(order, [re, im]),
            }
        });
        // The first stage that writes a row clears it, while the row is in cache.
        let (row, top) = (self.plan.series.multipole_len(), self.blocks());
        zeros(&mut self.w.multipoles, self.plan.pyramid.len() * row);
        zeros(&mut self.w.locals, level_start(top) * row);
    }

    fn p2m(&mut self, lists: &Lists) {
        let (plan, row) = (self.plan, self.row());
        let first = level_start(plan.pyramid.depth());
        let LaurentWorkspace { strengths, multipoles, .. } = &mut *self.w;
        let all = charged(plan, strengths);
        multipoles[first * row..].par_chunks_mut(row).enumerate().with_min_len(BOXES_PER_TASK).for_each(
            |(k, multipole)| {
                multipole.fill(0.0);
                for &s in lists.p2m.row(first + k) {
                    let s = s as usize;
                    let sources = part(&all, plan.pyramid.sources_of(s));
                    from_points::<false>(plan.isa, plan.series.kernel, frame(&plan.pyramid, s), sources, multipole);
                }
            },
        );
    }

    fn m2m(&mut self, lists: &Lists, level: usize) {
        let (plan, row) = (self.plan, self.row());
        let boxes = plan.pyramid.level(level);
        let (to, from) = self.w.multipoles.split_at_mut(boxes.end * row);
        to[boxes.start * row..].par_chunks_mut(BOXES_PER_TASK * row).enumerate().for_each(|(i, to)| {
            to.fill(0.0);
            let start = boxes.start + i * BOXES_PER_TASK;
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
    }

    /// M2L into the boxes above the blocks.
    fn m2l(&mut self, lists: &Lists) {
        let (plan, row) = (self.plan, self.row());
        let LaurentWorkspace { multipoles, locals, .. } = &mut *self.w;
        locals.par_chunks_mut(BOXES_PER_TASK * row).enumerate().for_each(|(i, locals)| {
            m2l(plan, lists, multipoles, i * BOXES_PER_TASK..i * BOXES_PER_TASK + locals.len() / row, locals);
        });
    }

    /// P2L into the boxes above the blocks.
    fn p2l(&mut self, lists: &Lists) {
        let (plan, row) = (self.plan, self.row());
        let LaurentWorkspace { strengths, locals, .. } = &mut *self.w;
        let all = charged(plan, strengths);
        locals.par_chunks_mut(BOXES_PER_TASK * row).enumerate().for_each(|(i, locals)| {
            p2l(plan, lists, &all, i * BOXES_PER_TASK..i * BOXES_PER_TASK + locals.len() / row, locals);
        });
    }

    /// L2L into the boxes of `level`, which lies above the blocks.
    fn l2l(&mut self, lists: &Lists, level: usize) {
        let (plan, row) = (self.plan, self.row());
        let boxes = plan.pyramid.level(level);
        let (from, to) = self.w.locals.split_at_mut(boxes.start * row);
        to[..boxes.len() * row].par_chunks_mut(BOXES_PER_TASK * row).enumerate().for_each(|(i, to)| {
            let start = boxes.start + i * BOXES_PER_TASK;
            l2l(plan, lists, from, 0, start..start + to.len() / row, to);
        });
    }
}

impl Schedule for Run<'_> {
    type Lists = Lists;

    fn steps(&self) -> Vec<Step> {
        let mut steps = vec![Step::Whole(Stage::Scatter), Step::Whole(Stage::P2m)];
        steps.extend((0..self.plan.pyramid.depth()).rev().map(|level| Step::Level(Stage::M2m, level)));
        steps.extend([Stage::M2l, Stage::P2l].map(Step::Whole));
        steps.extend((0..self.blocks()).map(|level| Step::Level(Stage::L2l, level)));
        steps.push(Step::Fused(Stage::L2p, Stage::Gather));
        steps
    }

    fn run(&mut self, step: Step, lists: &Lists, progress: &mut Progress) -> Result<(), Error> {
        match step {
            Step::Whole(Stage::Scatter) => self.timed(Stage::Scatter, |r| r.scatter()),
            Step::Whole(Stage::P2m) => self.timed(Stage::P2m, |r| r.p2m(lists)),
            Step::Level(Stage::M2m, level) => self.timed(Stage::M2m, |r| r.m2m(lists, level)),
            Step::Whole(Stage::M2l) => self.timed(Stage::M2l, |r| r.m2l(lists)),
            Step::Whole(Stage::P2l) => self.timed(Stage::P2l, |r| r.p2l(lists)),
            Step::Level(Stage::L2l, level) => self.timed(Stage::L2l, |r| r.l2l(lists, level)),
            Step::Fused(Stage::L2p, Stage::Gather) => self.below(lists, progress)?,
            _ => return Err(step.unknown()),
        }
        Ok(())
    }
}
