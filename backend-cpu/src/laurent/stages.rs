//! The stages over whole lists, and their clock.
//!
//! Values go to the caller's rows at once: there is no second array of values in tree order.

use super::near::{Charged, Gathered, HarmonicPair, LogarithmPair, PairKernel, VALUES, pairs};
use super::points::{Frame, FromPoints, ToPoints};
use super::shifts::{Down, M2l, Shifts, Up};
use super::{LaurentPlan, LaurentWorkspace};
use crate::StageSeconds;
use crate::lanes::dispatch;
use adaptive2d::complex::Complex;
use adaptive2d::pyramid::level_start;
use adaptive2d::{PlaneKernel, Pyramid};
use fmm_traits::{Error, Expansion, Lists, Stage, Stages};
use rayon::prelude::*;
use std::marker::PhantomData;
use std::ops::Range;
use std::time::Instant;

/// Boxes a task takes.
const TASK: usize = 64;
/// Levels from the leaves up to the blocks within which P2P serves both directions: 1024 leaves.
const BLOCK_LEVELS: usize = 5;

/// One application of a plan.
pub(super) struct Run<'a> {
    pub plan: &'a LaurentPlan,
    pub w: &'a mut LaurentWorkspace,
    pub strengths: &'a [f64],
    pub out: &'a mut [f64],
    pub seconds: StageSeconds,
}

/// The caller's rows of values, written by several tasks.
struct Rows {
    first: *mut f64,
    width: usize,
    kernel: PlaneKernel,
}
// SAFETY: a task writes only rows of targets that are its own (`Rows::add`).
unsafe impl Sync for Rows {}

impl Rows {
    /// Adds sums of the targets at positions `range`, whose rows are `order[position]`.
    ///
    /// # Safety
    /// `order` is a permutation of the rows of the array, and no other task has positions of `range`.
    unsafe fn add(&self, order: &[u32], range: Range<usize>, sums: [&[f64]; VALUES]) {
        for (i, position) in range.enumerate() {
            // SAFETY: `order[position]` is a row of the array, and only this task has it.
            let row = unsafe {
                std::slice::from_raw_parts_mut(self.first.add(order[position] as usize * self.width), self.width)
            };
            let [a, b, c, d] = sums.map(|s| s.get(i).copied().unwrap_or(0.0));
            self.kernel.add(Complex::new(a, b), Complex::new(c, d), row);
        }
    }
}

/// Sums of some targets, one array a number.
#[derive(Default)]
struct Sums([Vec<f64>; VALUES]);

impl Sums {
    /// `n` zeros in each of the arrays.
    fn clear(&mut self, n: usize) -> [&mut [f64]; VALUES] {
        for v in &mut self.0 {
            v.clear();
            v.resize(n, 0.0);
        }
        self.0.each_mut().map(|v| &mut v[..])
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
        self.seconds.0[stage as usize] += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn row(&self) -> usize {
        self.plan.series.multipole_len()
    }

    fn rows(&mut self) -> Rows {
        Rows { first: self.out.as_mut_ptr(), width: self.plan.values(), kernel: self.plan.series.kernel }
    }

    /// Calls `work(leaf, sums of its targets)` for each leaf for which `has` holds, and adds the sums to the
    /// caller's rows.
    fn each_leaf(
        &mut self,
        has: impl Fn(usize) -> bool + Sync,
        work: impl Fn(usize, [&mut [f64]; VALUES], &LaurentWorkspace) + Sync,
    ) {
        let rows = self.rows();
        let (pyramid, w) = (&self.plan.pyramid, &*self.w);
        let leaves = pyramid.level(pyramid.depth());
        leaves.into_par_iter().with_min_len(TASK).for_each_init(Sums::default, |sums, leaf| {
            if has(leaf) {
                let range = pyramid.targets_of(leaf);
                work(leaf, sums.clear(range.len()), w);
                // SAFETY: the order is a permutation, and the targets of a leaf are those of one task.
                unsafe { rows.add(&pyramid.targets.order, range, sums.0.each_ref().map(|v| &v[..])) };
            }
        });
    }

    /// Sources with their strengths, in tree order.
    fn near<K: PairKernel>(&mut self, lists: &Lists) {
        let rows = self.rows();
        let (plan, charged) = (self.plan, charged(self.plan, self.w));
        let pyramid = &plan.pyramid;
        let level = pyramid.depth().saturating_sub(BLOCK_LEVELS);
        let first = level_start(pyramid.depth());
        pyramid.level(level).into_par_iter().with_max_len(1).for_each_init(Scratch::default, |scratch, block| {
            let leaves = pyramid.leaves_of(block);
            let leaves = leaves.start + first..leaves.end + first;
            let targets = pyramid.targets_of(block);
            scratch.sums.clear(targets.len());
            for leaf in leaves.clone() {
                near_leaf::<K>(plan, lists, &charged, leaf, &leaves, targets.start, scratch);
            }
            // SAFETY: the order is a permutation, and the targets of a block are those of one task.
            unsafe { rows.add(&pyramid.targets.order, targets, scratch.sums.0.each_ref().map(|v| &v[..])) };
        });
    }
}

/// Sources of one leaf within its block and beyond, and the sums of the block.
#[derive(Default)]
struct Scratch {
    one_way: Gathered,
    both_ways: Gathered,
    partners: Vec<usize>,
    sums: Sums,
}

/// Strengths in tree order beside the sources.
fn charged<'a>(plan: &'a LaurentPlan, w: &'a LaurentWorkspace) -> Charged<'a> {
    let sources = &plan.pyramid.sources;
    Charged { at: [&sources.x, &sources.y], strengths: w.strengths.each_ref().map(|s| &s[..]) }
}

fn part<'a>(all: &Charged<'a>, range: Range<usize>) -> Charged<'a> {
    let cut = |a: &'a [f64]| if a.is_empty() { a } else { &a[range.clone()] };
    Charged { at: all.at.map(cut), strengths: all.strengths.map(cut) }
}

/// P2P into `leaf`, of the block of `leaves` whose first target is `start`; where targets are the sources, also
/// from `leaf` into the later leaves of the block that it meets.
fn near_leaf<K: PairKernel>(
    plan: &LaurentPlan,
    lists: &Lists,
    charged: &Charged,
    leaf: usize,
    leaves: &Range<usize>,
    start: usize,
    scratch: &mut Scratch,
) {
    let pyramid = &plan.pyramid;
    let Scratch { one_way, both_ways, partners, sums } = scratch;
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
    one_way.finish(0);
    both_ways.finish(VALUES);
    let own = pyramid.targets_of(leaf);
    let (x, y) = (&pyramid.targets.x[own.clone()], &pyramid.targets.y[own.clone()]);
    let inside = own.start - start..own.end - start;
    let mut out = sums.0.each_mut().map(|v| &mut v[inside.clone()]);
    let targets = Charged { at: [x, y], strengths: [&[], &[]] };
    pairs::<K, false>(plan.isa, plan.rough, targets, one_way, out.each_mut().map(|v| &mut **v));
    if partners.is_empty() {
        return;
    }
    pairs::<K, true>(plan.isa, plan.rough, part(charged, own), both_ways, out);
    for c in 0..VALUES {
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
            let pyramid = &r.plan.pyramid;
            let count = r.plan.series.kernel.strengths();
            for (c, to) in r.w.strengths.iter_mut().enumerate().take(count) {
                to.resize(pyramid.sources.len(), 0.0);
                to.par_iter_mut().zip(&pyramid.sources.order).with_min_len(4096).for_each(|(to, &user)| {
                    *to = r.strengths[user as usize * count + c];
                });
            }
            let length = pyramid.len() * r.plan.series.multipole_len();
            for v in [&mut r.w.multipoles, &mut r.w.locals] {
                v.resize(length, 0.0);
                v.par_chunks_mut(1 << 16).for_each(|v| v.fill(0.0));
            }
            r.out.par_chunks_mut(1 << 16).for_each(|v| v.fill(0.0));
        })
    }

    fn p2m(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::P2m, |r| {
            let (plan, row) = (r.plan, r.row());
            let first = level_start(plan.pyramid.depth());
            let LaurentWorkspace { strengths, multipoles, .. } = &mut *r.w;
            let sources = &plan.pyramid.sources;
            let all = Charged { at: [&sources.x, &sources.y], strengths: strengths.each_ref().map(|s| &s[..]) };
            multipoles[first * row..].par_chunks_mut(row).enumerate().with_min_len(TASK).for_each(|(k, multipole)| {
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
            let (to, from) = r.w.multipoles.split_at_mut(boxes.end * row);
            to[boxes.start * row..].par_chunks_mut(TASK * row).enumerate().for_each(|(i, to)| {
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

    fn m2l(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::M2l, |r| {
            let (plan, row) = (r.plan, r.row());
            let LaurentWorkspace { multipoles, locals, .. } = &mut *r.w;
            locals.par_chunks_mut(TASK * row).enumerate().for_each(|(i, locals)| {
                dispatch(
                    plan.isa,
                    M2l {
                        pyramid: &plan.pyramid,
                        edges: &lists.m2l,
                        hankel: &plan.hankel,
                        multipoles,
                        targets: i * TASK..i * TASK + locals.len() / row,
                        locals,
                        logarithms: plan.logarithms(),
                    },
                );
            });
        })
    }

    fn p2l(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::P2l, |r| {
            if lists.p2l.is_empty() {
                return;
            }
            let (plan, row) = (r.plan, r.row());
            let LaurentWorkspace { strengths, locals, .. } = &mut *r.w;
            let sources = &plan.pyramid.sources;
            let all = Charged { at: [&sources.x, &sources.y], strengths: strengths.each_ref().map(|s| &s[..]) };
            locals.par_chunks_mut(row).enumerate().with_min_len(TASK).for_each(|(b, local)| {
                for &s in lists.p2l.row(b) {
                    dispatch(
                        plan.isa,
                        FromPoints::<true> {
                            kernel: plan.series.kernel,
                            frame: frame(&plan.pyramid, b),
                            sources: part(&all, plan.pyramid.sources_of(s as usize)),
                            row: local,
                        },
                    );
                }
            });
        })
    }

    fn l2l(&mut self, lists: &Lists, level: usize) -> Result<(), Error> {
        self.timed(Stage::L2l, |r| {
            let (plan, row) = (r.plan, r.row());
            let boxes = plan.pyramid.level(level);
            let (from, to) = r.w.locals.split_at_mut(boxes.start * row);
            to[..boxes.len() * row].par_chunks_mut(TASK * row).enumerate().for_each(|(i, to)| {
                let start = boxes.start + i * TASK;
                dispatch(
                    plan.isa,
                    Shifts::<Down> {
                        pyramid: &plan.pyramid,
                        edges: &lists.l2l,
                        order: plan.series.order,
                        from,
                        first: 0,
                        boxes: start..start + to.len() / row,
                        to,
                        _a: PhantomData,
                    },
                );
            });
        })
    }

    fn l2p(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::L2p, |r| {
            let (plan, row) = (r.plan, r.row());
            let pyramid = &plan.pyramid;
            r.each_leaf(
                |b| !lists.l2p.row(b).is_empty(),
                |b, out, w| {
                    let range = pyramid.targets_of(b);
                    let at = [&pyramid.targets.x[range.clone()], &pyramid.targets.y[range]];
                    let (frame, row) = (frame(pyramid, b), &w.locals[b * row..][..row]);
                    if plan.series.gradient {
                        dispatch(plan.isa, ToPoints::<false, true> { frame, row, at, out, logarithms: false });
                    } else {
                        dispatch(plan.isa, ToPoints::<false, false> { frame, row, at, out, logarithms: false });
                    }
                },
            );
        })
    }

    fn m2p(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::M2p, |r| {
            let (plan, row) = (r.plan, r.row());
            let (pyramid, logarithms) = (&plan.pyramid, plan.logarithms());
            r.each_leaf(
                |b| !lists.m2p.row(b).is_empty(),
                |b, mut out, w| {
                    let range = pyramid.targets_of(b);
                    let at = [&pyramid.targets.x[range.clone()], &pyramid.targets.y[range]];
                    for s in lists.m2p.row(b).iter().map(|&s| s as usize) {
                        let (frame, row) = (frame(pyramid, s), &w.multipoles[s * row..][..row]);
                        let out = out.each_mut().map(|v| &mut **v);
                        if plan.series.gradient {
                            dispatch(plan.isa, ToPoints::<true, true> { frame, row, at, out, logarithms });
                        } else {
                            dispatch(plan.isa, ToPoints::<true, false> { frame, row, at, out, logarithms });
                        }
                    }
                },
            );
        })
    }

    fn p2p(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::P2p, |r| match (r.plan.series.kernel, r.plan.series.gradient) {
            (PlaneKernel::Harmonic, false) => r.near::<HarmonicPair<false>>(lists),
            (PlaneKernel::Harmonic, true) => r.near::<HarmonicPair<true>>(lists),
            (PlaneKernel::Laplace, false) => r.near::<LogarithmPair<false>>(lists),
            (PlaneKernel::Laplace, true) => r.near::<LogarithmPair<true>>(lists),
        })
    }

    fn gather(&mut self) -> Result<(), Error> {
        Ok(())
    }
}
