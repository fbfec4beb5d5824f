//! The stages of the equivalent-density method, bulk over whole lists, and their clock.

use super::near::{near_field, near_frame};
use super::plan::{Plan, Workspace};
use super::points::{self, Frame, from_surface};
use super::pool::Pool;
use super::{m2l, translate};
use crate::sum::Pair;
use crate::{Precision, StageSeconds, unit_of};
use fmm_kernels::equivalent::Scalar;
use fmm_traits::{Error, Lists, Real, Stage, Stages};
use rayon::prelude::*;
use std::time::Instant;

/// One application of a plan.
pub(super) struct Run<'a, T: Scalar> {
    plan: &'a Plan<T>,
    w: Workspace<T>,
    strengths: &'a [f64],
    /// [`unit_of`] the strengths.
    unit: f64,
    out: &'a mut [f64],
    seconds: StageSeconds,
}

impl<'a, T: Scalar> Run<'a, T> {
    pub fn new(plan: &'a Plan<T>, w: Workspace<T>, strengths: &'a [f64], out: &'a mut [f64]) -> Self {
        Run { plan, w, strengths, unit: unit_of(strengths), out, seconds: StageSeconds::default() }
    }

    pub fn finish(self) -> (Workspace<T>, StageSeconds) {
        (self.w, self.seconds)
    }

    /// Runs a stage and adds its time.
    fn timed(&mut self, stage: Stage, work: impl FnOnce(&mut Self)) -> Result<(), Error> {
        let start = Instant::now();
        work(self);
        self.seconds.0[stage as usize] += start.elapsed().as_secs_f64();
        Ok(())
    }

    /// Calls `work(leaf, level, values of its targets)` for every leaf that has targets, in tasks of
    /// consecutive targets.
    fn for_each_leaf(&mut self, work: impl Fn(usize, usize, &mut [f64], &Workspace<T>) + Sync) {
        let (tree, geometry, width) = (&self.plan.tree, &self.plan.geometry, self.plan.far.values());
        let mut values = std::mem::take(&mut self.w.values);
        let mut rest = &mut values[..];
        let mut tasks = Vec::with_capacity(geometry.groups.len());
        for group in geometry.groups.windows(2) {
            let leaves = &geometry.leaves[group[0]..group[1]];
            let count: usize = leaves.iter().map(|&(b, _)| tree.targets_of(b as usize).len()).sum();
            let (here, after) = rest.split_at_mut(count * width);
            tasks.push((leaves, here));
            rest = after;
        }
        let w = &self.w;
        tasks.into_par_iter().with_max_len(1).for_each(|(leaves, mut values)| {
            for &(b, level) in leaves {
                let (here, after) = values.split_at_mut(tree.targets_of(b as usize).len() * width);
                work(b as usize, level as usize, here, w);
                values = after;
            }
        });
        self.w.values = values;
    }

    fn near<N: Real>(&mut self, lists: &Lists, pair: &Pair<N>, pool: &Pool<points::Scratch<N>>) {
        let plan = self.plan;
        let convert = |x: &[f64]| -> Vec<N> { x.iter().map(|&x| N::of(x)).collect() };
        let raw = convert(&plan.raw_params);
        let unit: Vec<Vec<N>> = plan.near_params.iter().map(|x| convert(x)).collect();
        self.for_each_leaf(|leaf, level, out, w| {
            let params = if near_frame::<N>(&plan.tree, leaf, level).is_some() { &unit[level] } else { &raw };
            pool.with(|scratch| {
                let (tree, isa) = (&plan.tree, plan.settings.isa);
                near_field(pair, tree, lists, &w.strengths, leaf, level, params, isa, scratch, out);
            });
        });
    }
}

impl<T: Scalar> Stages for Run<'_, T> {
    type Lists = Lists;

    fn levels(&self) -> usize {
        self.plan.tree.levels()
    }

    fn scatter(&mut self) -> Result<(), Error> {
        self.timed(Stage::Scatter, |r| {
            let tree = &r.plan.tree;
            let (count, unit) = (r.plan.near64.strengths(), r.unit);
            r.w.strengths.resize_with(count, Vec::new);
            for (c, to) in r.w.strengths.iter_mut().enumerate() {
                to.resize(tree.sources.len(), 0.0);
                to.par_iter_mut().zip(&tree.sources.order).with_min_len(4096).for_each(|(to, &user)| {
                    *to = r.strengths[user as usize * count + c] / unit;
                });
            }
            let boxes = if r.plan.operators.is_empty() { 0 } else { tree.len() };
            let clear = |v: &mut Vec<T>, len| {
                v.resize(len, T::default());
                v.par_chunks_mut(1 << 16).for_each(|v| v.fill(T::default()));
            };
            clear(&mut r.w.multipoles, boxes * r.plan.multipole_row());
            clear(&mut r.w.locals, boxes * r.plan.local_row());
            r.w.values.resize(tree.targets.len() * r.plan.far.values(), 0.0);
            r.w.values.par_chunks_mut(1 << 16).for_each(|v| v.fill(0.0));
        })
    }

    fn p2m(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::P2m, |r| {
            let plan = r.plan;
            for level in 0..plan.operators.len() {
                let boxes = plan.tree.level(level);
                if lists.p2m.starts[boxes.start] < lists.p2m.starts[boxes.end] {
                    points::p2m(
                        &plan.check,
                        &plan.tree,
                        lists,
                        level,
                        &plan.operators[level],
                        &plan.params[level],
                        &plan.outer,
                        plan.settings.isa,
                        &r.w.strengths,
                        &plan.pools.points,
                        &plan.pools.translate,
                        &mut r.w.multipoles,
                    );
                }
            }
        })
    }

    fn m2m(&mut self, lists: &Lists, level: usize) -> Result<(), Error> {
        self.timed(Stage::M2m, |r| {
            let plan = r.plan;
            if let Some(operators) = plan.operators.get(level) {
                let (isa, pool) = (plan.settings.isa, &plan.pools.translate);
                translate::m2m(&plan.tree, lists, level, operators, isa, pool, &mut r.w.multipoles);
            }
        })
    }

    fn m2l(&mut self, _lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::M2l, |r| {
            let plan = r.plan;
            let (multipole, local) = (plan.multipole_row(), plan.local_row());
            for (level, arranged) in plan.geometry.m2l.iter().enumerate() {
                if let Some(table) = &plan.tables[level] {
                    let boxes = plan.tree.level(level);
                    m2l::m2l(
                        &plan.tree,
                        arranged,
                        table,
                        &plan.dft,
                        plan.settings.isa,
                        &plan.pools.m2l,
                        boxes.start,
                        &r.w.multipoles[boxes.start * multipole..boxes.end * multipole],
                        &mut r.w.locals[boxes.start * local..boxes.end * local],
                        local,
                        &mut r.w.spectra,
                    );
                }
            }
        })
    }

    fn p2l(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::P2l, |r| {
            let plan = r.plan;
            for level in 0..plan.operators.len() {
                points::p2l(
                    &plan.check,
                    &plan.tree,
                    lists,
                    level,
                    &plan.params[level],
                    &plan.inner,
                    plan.settings.isa,
                    &r.w.strengths,
                    &plan.pools.points,
                    &mut r.w.locals,
                    plan.local_row(),
                );
            }
        })
    }

    fn l2l(&mut self, lists: &Lists, level: usize) -> Result<(), Error> {
        self.timed(Stage::L2l, |r| {
            let plan = r.plan;
            if let Some(operators) = plan.operators.get(level) {
                let parents = level.checked_sub(1).map(|l| &*plan.operators[l]);
                let (active, pool) = (&plan.geometry.active, &plan.pools.translate);
                let row = plan.local_row();
                let isa = plan.settings.isa;
                translate::l2l(&plan.tree, lists, level, operators, parents, active, isa, pool, &mut r.w.locals, row);
            }
        })
    }

    fn l2p(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::L2p, |r| {
            let plan = r.plan;
            let (row, density) = (plan.local_row(), plan.multipole_row());
            if lists.l2p.is_empty() {
                return;
            }
            r.for_each_leaf(|leaf, level, out, w| {
                if !lists.l2p.row(leaf).is_empty() {
                    plan.pools.points.with(|scratch| {
                        let frame = Frame::of(&plan.tree, leaf, level);
                        let local = &w.locals[leaf * row..][..density];
                        let (params, range) = (&plan.params[level], plan.tree.targets_of(leaf));
                        let (tree, isa) = (&plan.tree, plan.settings.isa);
                        from_surface(&plan.far, tree, frame, &plan.outer, local, params, range, isa, scratch, out);
                    });
                }
            });
        })
    }

    fn m2p(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::M2p, |r| {
            let plan = r.plan;
            let density = plan.multipole_row();
            if lists.m2p.is_empty() {
                return;
            }
            r.for_each_leaf(|leaf, _, out, w| {
                for &source in lists.m2p.row(leaf) {
                    let source = source as usize;
                    let level = plan.tree.level_of(source);
                    plan.pools.points.with(|scratch| {
                        let frame = Frame::of(&plan.tree, source, level);
                        let multipole = &w.multipoles[source * density..][..density];
                        let (params, range) = (&plan.params[level], plan.tree.targets_of(leaf));
                        let (tree, isa) = (&plan.tree, plan.settings.isa);
                        from_surface(&plan.far, tree, frame, &plan.inner, multipole, params, range, isa, scratch, out);
                    });
                }
            });
        })
    }

    fn p2p(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::P2p, |r| match r.plan.settings.near {
            Precision::F32 => r.near(lists, &r.plan.near32, &r.plan.pools.near32),
            Precision::F64 => r.near(lists, &r.plan.near64, &r.plan.pools.near64),
        })
    }

    fn gather(&mut self) -> Result<(), Error> {
        self.timed(Stage::Gather, |r| {
            let (values, scale, width) = (&r.w.values, r.plan.scale * r.unit, r.plan.far.values());
            let position = &r.plan.geometry.position;
            r.out.par_chunks_mut(width).zip(position).with_min_len(4096).for_each(|(to, &at)| {
                let from = &values[at as usize * width..][..width];
                to.iter_mut().zip(from).for_each(|(to, x)| *to = x * scale);
            });
        })
    }
}
