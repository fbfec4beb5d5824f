//! The stages of the equivalent-density method, bulk over whole lists, and their clock.

use super::near::Near;
use super::plan::{Plan, Workspace};
use super::points::{self, Frame, from_surface};
use super::{m2l, net, translate};
use crate::leaves::{clear, scatter};
use crate::{StageSeconds, unit_of};
use fmm_kernels::equivalent::Scalar;
use fmm_traits::{Error, Lists, Stage, Stages};
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
        let unit = unit_of(strengths, &plan.near64.strength_degrees, plan.tree.side_at(0));
        Run { plan, w, strengths, unit, out, seconds: StageSeconds::default() }
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
        let plan = self.plan;
        let mut values = std::mem::take(&mut self.w.values);
        let w = &self.w;
        plan.geometry.leaves.for_each(&plan.tree, plan.far.values(), &mut values, |leaf, level, out| {
            work(leaf, level, out, w);
        });
        self.w.values = values;
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
            scatter(tree, r.strengths, r.plan.near64.strengths(), r.unit, &mut r.w.strengths);
            let boxes = if r.plan.operators.is_empty() { 0 } else { tree.len() };
            r.w.net.clear();
            if let Some(operators) = r.plan.operators.first() {
                let net = |(s, _)| net::strengths(tree, &r.w.strengths, s, r.plan.near64.strength_degrees[s]);
                r.w.net = operators.units().map(net).collect();
            }
            clear(&mut r.w.multipoles, boxes * r.plan.multipole_row());
            clear(&mut r.w.locals, boxes * r.plan.local_row());
            clear(&mut r.w.values, tree.targets.len() * r.plan.far.values());
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
                        &r.w.net,
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
                translate::m2m(&plan.tree, lists, level, operators, isa, &r.w.net, pool, &mut r.w.multipoles);
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
                let (tree, affine, row, isa) = (&plan.tree, &plan.affine, plan.local_row(), plan.settings.isa);
                let locals = &mut r.w.locals;
                translate::l2l(tree, lists, level, operators, parents, affine, active, isa, pool, locals, row);
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
                        let (local, affine) = w.locals[leaf * row..][..row].split_at(row - plan.affine.len());
                        let (params, range) = (&plan.params[level], plan.tree.targets_of(leaf));
                        let (tree, isa, local) = (&plan.tree, plan.settings.isa, &local[..density]);
                        points::add_affine(&plan.affine, &plan.far, tree, frame, affine, range.clone(), out);
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
                    let frame = Frame::of(&plan.tree, source, level);
                    let multipole = &w.multipoles[source * density..][..density];
                    let (tree, isa, range) = (&plan.tree, plan.settings.isa, plan.tree.targets_of(leaf));
                    let operators = &plan.operators[level];
                    if T::EPSILON > 1e-10 && !operators.kept.is_empty() {
                        // Leaves may reach far beyond the box. These kernels are homogeneous: no level changes parameters.
                        let (wide, params) = (net::in_f64(operators, &w.net, source, multipole), &plan.plain_params);
                        plan.pools.near64.with(|scratch| {
                            from_surface(
                                &plan.far64,
                                tree,
                                frame,
                                &plan.inner64,
                                &wide,
                                params,
                                range,
                                isa,
                                scratch,
                                out,
                            );
                        });
                    } else {
                        plan.pools.points.with(|scratch| {
                            let (pair, params) = (&plan.far, &plan.params[level]);
                            from_surface(pair, tree, frame, &plan.inner, multipole, params, range, isa, scratch, out);
                        });
                    }
                }
            });
        })
    }

    fn p2p(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::P2p, |r| {
            let plan = r.plan;
            r.for_each_leaf(|leaf, level, out, w| {
                let near = Near { tree: &plan.tree, lists, strengths: &w.strengths, leaf, isa: plan.settings.isa };
                let frame = Frame::of(&plan.tree, leaf, level);
                let params = (&plan.params[level][..], &plan.plain_params[..]);
                near.add((&plan.near, &plan.near64), frame, params, (&plan.pools.points, &plan.pools.near64), out);
            });
        })
    }

    fn gather(&mut self) -> Result<(), Error> {
        self.timed(Stage::Gather, |r| {
            let (scale, width) = (r.plan.scale * r.unit, r.plan.far.values());
            r.plan.geometry.leaves.gather(&r.w.values, scale, width, r.out);
        })
    }
}
