//! The stages of the equivalent-density method, each over whole lists, with their times.

use super::plan::{Plan, Workspace};
use super::points::{self, from_nodes};
use super::translate::Rows;
use super::{m2l, net, translate};
use crate::frame::Frame;
use crate::leaves::{clear, scatter};
use crate::near::Near;
use crate::{power_of_two, ranks};
use fmm_kernels::equivalent::Scalar;
use fmm_traits::{Error, Lists, Stage, StageSeconds, Stages, Step};
use std::mem::take;
use std::time::Instant;

/// One application of a plan to one or more sets of strengths. Stages that evaluate the kernel do so once for up to
/// [`together`](fmm_traits::Solver::together) sets. The other stages take the sets one by one: these stages are
/// products of matrices, or sums bound by arithmetic, for a single set already.
pub(super) struct Run<'a, 'o, T: Scalar> {
    plan: &'a Plan<T>,
    w: Workspace<T>,
    /// The strengths of each set, and their unit ([`Pair::unit_of`](crate::pairs::Pair::unit_of)).
    sets: Vec<(&'a [f64], f64)>,
    out: &'a mut [&'o mut [f64]],
    /// Rows of `w.multipoles`.
    multipoles: Rows,
    /// Rows of `w.locals`.
    locals: Rows,
    seconds: StageSeconds,
}

impl<'a, 'o, T: Scalar> Run<'a, 'o, T> {
    pub fn new(plan: &'a Plan<T>, w: Workspace<T>, strengths: &[&'a [f64]], out: &'a mut [&'o mut [f64]]) -> Self {
        // Scatter finds the units.
        let sets: Vec<_> = strengths.iter().map(|&q| (q, 1.0)).collect();
        let rows = |len: usize| Rows { sets: sets.len(), len };
        let (multipoles, locals) = (rows(plan.multipole_row()), rows(plan.local_row()));
        Run { plan, w, sets, out, multipoles, locals, seconds: StageSeconds::default() }
    }

    pub fn finish(self) -> (Workspace<T>, StageSeconds) {
        (self.w, self.seconds)
    }

    /// Runs a stage and adds its time.
    fn timed(&mut self, stage: Stage, work: impl FnOnce(&mut Self)) -> Result<(), Error> {
        self.tried(stage, |run| {
            work(run);
            Ok(())
        })
    }

    /// Runs a stage that may fail, and adds its time.
    fn tried(&mut self, stage: Stage, work: impl FnOnce(&mut Self) -> Result<(), Error>) -> Result<(), Error> {
        let start = Instant::now();
        let done = work(self);
        self.seconds[stage as usize] += start.elapsed().as_secs_f64();
        done
    }

    /// Calls `work(leaf, level, values of its targets)` for every leaf that has targets, in tasks of
    /// consecutive targets.
    fn for_each_leaf(&mut self, work: impl Fn(usize, usize, &mut [f64], &Workspace<T>) + Sync) {
        let plan = self.plan;
        let mut values = take(&mut self.w.values);
        let w = &self.w;
        let width = self.sets.len() * plan.loops.far.values();
        plan.geometry.leaves.for_each(&plan.tree, width, &mut values, |leaf, level, out| {
            work(leaf, level, out, w);
        });
        self.w.values = values;
    }

    /// P2P of some leaves.
    fn near(&mut self, lists: &Lists, which: impl Fn(usize) -> bool + Sync) {
        let plan = self.plan;
        self.for_each_leaf(|leaf, level, out, w| {
            if !which(leaf) {
                return;
            }
            let near = Near { tree: &plan.tree, lists, strengths: &w.strengths, leaf, isa: plan.settings.isa };
            let frame = Frame::of(&plan.tree, leaf, level);
            let params = (&plan.params[level][..], &plan.plain_params[..]);
            let pools = (&plan.pools.points, &plan.pools.near64);
            near.add((&plan.loops.near, &plan.loops.near64), frame, params, pools, out);
        });
    }
}

impl<T: Scalar> Stages for Run<'_, '_, T> {
    type Lists = Lists;

    fn levels(&self) -> usize {
        self.plan.tree.levels()
    }

    fn order(&self) -> Vec<Step> {
        Step::near_first(self.levels())
    }

    fn scatter(&mut self) -> Result<(), Error> {
        self.tried(Stage::Scatter, |r| {
            let (tree, near) = (&r.plan.tree, &r.plan.loops.near64);
            let mut units: Vec<f64> = r.sets.iter().map(|(q, _)| near.largest(q, tree.side_at(0))).collect();
            ranks::largest(tree, &mut units)?;
            r.sets.iter_mut().zip(units).for_each(|((_, unit), largest)| *unit = power_of_two(largest));
            scatter(tree, &r.sets, near, &mut r.w.strengths);
            ranks::lend(tree, &r.w.strengths)?;
            r.w.net.clear();
            r.w.sums.clear();
            if let Some(kept) = r.plan.kept() {
                let degrees = &near.strength_degrees;
                for strengths in r.w.strengths.chunks_exact(degrees.len()) {
                    for &s in kept.iter().flatten() {
                        let sums = net::sums(tree, &r.plan.lists, strengths, s);
                        r.w.net.push(net::hatted(tree, &sums, degrees[s]));
                        if ranks::active(tree) {
                            r.w.sums.push((degrees[s], sums));
                        }
                    }
                }
            }
            let ([multipoles, locals], sets) = (r.plan.rows(), r.sets.len());
            clear(&mut r.w.multipoles, sets * multipoles);
            clear(&mut r.w.locals, sets * locals);
            clear(&mut r.w.values, tree.targets.len() * sets * r.plan.loops.far.values());
            Ok(())
        })
    }

    fn p2m(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::P2m, |r| {
            let plan = r.plan;
            for level in 0..plan.operators.len() {
                let boxes = plan.tree.level(level);
                if lists.p2m.starts[boxes.start] < lists.p2m.starts[boxes.end] {
                    points::p2m(
                        &plan.loops.check,
                        &plan.tree,
                        lists,
                        level,
                        &plan.operators[level],
                        &plan.own_params[level],
                        &plan.outer,
                        plan.settings.isa,
                        &r.w.strengths,
                        &r.w.net,
                        &plan.pools.points,
                        &plan.pools.translate,
                        r.multipoles,
                        &mut r.w.multipoles,
                    );
                }
            }
        })
    }

    fn m2m(&mut self, lists: &Lists, level: usize) -> Result<(), Error> {
        self.timed(Stage::M2m, |r| {
            let plan = r.plan;
            if let Some(operators) = plan.operators.get(level).filter(|_| !lists.m2m.is_empty()) {
                let isa = plan.settings.isa;
                let (tree, pool, rows) = (&plan.tree, &plan.pools.translate, r.multipoles);
                translate::m2m(tree, &lists.m2m, level, operators, isa, &r.w.net, pool, rows, &mut r.w.multipoles);
            }
        })
    }

    /// Counts as M2M, but for the near pairs that are summed meanwhile.
    fn exchange(&mut self) -> Result<(), Error> {
        let (plan, tree, rows) = (self.plan, &self.plan.tree, self.multipoles);
        let Some(exchange) = ranks::exchange(tree) else { return Ok(()) };
        let (mut multipoles, mut sums) = (take(&mut self.w.multipoles), take(&mut self.w.sums));
        let components = self.w.strengths.len();
        let messages = || {
            let ghosts = exchange.ghosts(components)?;
            sums.iter_mut().try_for_each(|(_, sums)| net::complete(tree, sums))?;
            if plan.rows()[0] > 0 {
                ranks::complete(tree, &mut multipoles, rows.width())?;
            }
            Ok(ghosts)
        };
        let start = Instant::now();
        let (ghosts, near) = ranks::beside(exchange, messages, |goes_on| {
            self.near(&plan.lists, |leaf| goes_on() && ranks::early(tree, &plan.lists, leaf));
        })?;
        (self.w.multipoles, self.w.sums) = (multipoles, sums);
        ranks::put(tree.shared.as_deref(), &ghosts, &mut self.w.strengths);
        for ((degree, sums), net) in self.w.sums.iter().zip(&mut self.w.net) {
            *net = net::hatted(tree, sums, *degree);
        }
        if let Some(after) = ranks::after(tree) {
            for level in ranks::levels_of(tree, after) {
                let (isa, operators, pool) = (plan.settings.isa, &plan.operators[level], &plan.pools.translate);
                translate::m2m(tree, after, level, operators, isa, &self.w.net, pool, rows, &mut self.w.multipoles);
            }
        }
        self.seconds[Stage::P2p as usize] += near;
        self.seconds[Stage::M2m as usize] += start.elapsed().as_secs_f64() - near;
        Ok(())
    }

    fn m2l(&mut self, _lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::M2l, |r| {
            let (plan, all) = (r.plan, r.sets.len());
            for (level, arranged) in plan.geometry.m2l.iter().enumerate() {
                let Some(table) = &plan.tables[level] else { continue };
                let boxes = plan.tree.level(level);
                let at_once = plan.sets_at_once(arranged.parents.len());
                for start in (0..all).step_by(at_once) {
                    m2l::m2l(
                        &plan.tree,
                        arranged,
                        table,
                        &plan.dft,
                        plan.settings.isa,
                        &plan.pools.m2l,
                        boxes.start,
                        start..all.min(start + at_once),
                        (r.multipoles, &r.w.multipoles[r.multipoles.range(boxes.clone())]),
                        (r.locals, &mut r.w.locals[r.locals.range(boxes.clone())]),
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
                    &plan.loops.check,
                    &plan.tree,
                    lists,
                    level,
                    &plan.params[level],
                    &plan.inner,
                    plan.settings.isa,
                    &r.w.strengths,
                    &plan.pools.points,
                    r.locals,
                    &mut r.w.locals,
                );
            }
        })
    }

    fn l2l(&mut self, lists: &Lists, level: usize) -> Result<(), Error> {
        self.timed(Stage::L2l, |r| {
            let plan = r.plan;
            if let Some(operators) = plan.operators.get(level).filter(|_| lists.have_locals()) {
                let parents = level.checked_sub(1).map(|l| &*plan.operators[l]);
                let (active, pool, rows) = (&plan.geometry.active, &plan.pools.translate, r.locals);
                let (tree, affine, isa, locals) = (&plan.tree, &plan.affine, plan.settings.isa, &mut r.w.locals);
                translate::l2l(tree, lists, level, operators, parents, affine, active, isa, pool, rows, locals);
            }
        })
    }

    fn l2p(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::L2p, |r| {
            let plan = r.plan;
            let (rows, density) = (r.locals, plan.multipole_row());
            if lists.l2p.is_empty() {
                return;
            }
            r.for_each_leaf(|leaf, level, out, w| {
                if !lists.l2p.row(leaf).is_empty() {
                    plan.pools.points.with(|scratch| {
                        let frame = Frame::of(&plan.tree, leaf, level);
                        let locals = &w.locals[rows.range(leaf..leaf + 1)];
                        let (params, range) = (&plan.own_params[level], plan.tree.targets_of(leaf));
                        let (tree, affine, isa) = (&plan.tree, &plan.affine, plan.settings.isa);
                        for (set, local) in locals.chunks_exact(rows.len).enumerate() {
                            let (part, place) = (&local[rows.len - affine.len()..], [set, rows.sets]);
                            points::add_affine(affine, &plan.loops.far, tree, frame, part, range.clone(), place, out);
                        }
                        let densities = locals.chunks_exact(rows.len).map(|local| &local[..density]);
                        from_nodes(
                            &plan.loops.far,
                            tree,
                            frame,
                            &plan.outer,
                            densities,
                            params,
                            range,
                            isa,
                            scratch,
                            out,
                        );
                    });
                }
            });
        })
    }

    fn m2p(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::M2p, |r| {
            let plan = r.plan;
            let rows = r.multipoles;
            if lists.m2p.is_empty() {
                return;
            }
            r.for_each_leaf(|leaf, _, out, w| {
                for &source in lists.m2p.row(leaf) {
                    let source = source as usize;
                    let level = plan.tree.level_of(source);
                    let frame = Frame::of(&plan.tree, source, level);
                    let densities = w.multipoles[rows.range(source..source + 1)].chunks_exact(rows.len);
                    let (tree, isa, range) = (&plan.tree, plan.settings.isa, plan.tree.targets_of(leaf));
                    let operators = &plan.operators[level];
                    if T::EPSILON > 1e-10 && !operators.kept.is_empty() {
                        // Targets may lie far from the box, in units of its side. These kernels are homogeneous: their
                        // parameters are the same on all levels.
                        let (pair, inner, params) = (&plan.loops.far64, &plan.inner64, &plan.plain_params);
                        plan.pools.near64.with(|scratch| {
                            let mut wide = take(&mut scratch.wide);
                            wide.clear();
                            for (set, density) in densities.enumerate() {
                                net::in_f64(operators, rows.part(&w.net, set), source, density, &mut wide);
                            }
                            let densities = wide.chunks_exact(rows.len);
                            from_nodes(pair, tree, frame, inner, densities, params, range, isa, scratch, out);
                            scratch.wide = wide;
                        });
                    } else {
                        plan.pools.points.with(|scratch| {
                            let (pair, params) = (&plan.loops.far, &plan.params[level]);
                            from_nodes(pair, tree, frame, &plan.inner, densities, params, range, isa, scratch, out);
                        });
                    }
                }
            });
        })
    }

    fn p2p(&mut self, lists: &Lists) -> Result<(), Error> {
        let tree = &self.plan.tree;
        self.timed(Stage::P2p, |r| r.near(lists, |leaf| !ranks::early(tree, lists, leaf)))
    }

    fn gather(&mut self) -> Result<(), Error> {
        self.timed(Stage::Gather, |r| {
            for (set, ((_, unit), out)) in r.sets.iter().zip(r.out.iter_mut()).enumerate() {
                let (factor, width) = (r.plan.kernels.scale * unit, r.plan.loops.far.values());
                r.plan.geometry.leaves.gather(&r.w.values, factor, width, [set, r.sets.len()], out);
            }
        })
    }
}
