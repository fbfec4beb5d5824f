//! The stages of the equivalent-density method, each over whole lists, with their times.

use super::field::Field;
use super::plan::{Expansions, Plan, Workspace};
use super::points::{self, from_nodes};
use super::translate::Rows;
use super::{m2l, net, translate};
use crate::elsewhere::Coming;
use crate::frame::Frame;
use crate::leaves::{clear, scatter, take_part};
use crate::near::Near;
use crate::{power_of_two, ranks};
use fmm_kernels::equivalent::Scalar;
use fmm_traits::{Error, Lists, Stage, StageSeconds, Stages, Step};
use std::mem::take;
use std::ops::Range;
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
    /// For each far field, the rows of its multipoles and of its locals.
    rows: Vec<[Rows; 2]>,
    /// The near field, while another processor sums it.
    near: Option<Coming>,
    seconds: StageSeconds,
}

impl<'a, 'o, T: Scalar> Run<'a, 'o, T> {
    pub fn new(plan: &'a Plan<T>, mut w: Workspace<T>, strengths: &[&'a [f64]], out: &'a mut [&'o mut [f64]]) -> Self {
        // Scatter finds the units.
        let sets: Vec<_> = strengths.iter().map(|&q| (q, 1.0)).collect();
        let of_len = |len: usize| Rows { sets: sets.len(), len };
        let of_field = |field| [plan.multipole_row(), plan.local_row(field)].map(of_len);
        let rows = plan.fields.iter().map(of_field).collect();
        w.expansions.resize_with(plan.fields.len(), Default::default);
        Run { plan, w, sets, out, rows, near: None, seconds: StageSeconds::default() }
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

    /// Begins the near field, if another processor sums it.
    fn begin_near(&mut self) -> Result<(), Error> {
        let begin = |near| Coming::begin(near, &self.w.strengths, self.plan.loops.near64.strengths());
        self.near = self.plan.elsewhere.as_ref().map(begin).transpose()?;
        Ok(())
    }

    /// P2P of some leaves, unless another processor sums the near field.
    fn near(&mut self, lists: &Lists, which: impl Fn(usize) -> bool + Sync) {
        let plan = self.plan;
        if plan.elsewhere.is_some() {
            return;
        }
        self.for_each_leaf(|leaf, level, out, w| {
            if !which(leaf) {
                return;
            }
            let near = Near { tree: &plan.tree, lists, strengths: &w.strengths, leaf, isa: plan.settings.isa };
            let frame = Frame::of(&plan.tree, leaf, level);
            // Attributes are those of the sources, so the parameters of any far field will do.
            let params = (&plan.fields[0].params[level][..], &plan.fields[0].plain_params[..]);
            let pools = (&plan.pools.points, &plan.pools.near64);
            near.add((&plan.loops.near, &plan.loops.near64), frame, params, pools, out);
        });
    }

    /// Calls `work(plan, field, its strengths, rows of its multipoles and locals, its expansions, spectra)` for each far
    /// field.
    fn for_each_field(
        &mut self,
        work: impl Fn(&Plan<T>, &Field<T>, &[Vec<f64>], [Rows; 2], &mut Expansions<T>, &mut Vec<T>),
    ) {
        for (k, (field, rows)) in self.plan.fields.iter().zip(&self.rows).enumerate() {
            let mut expansions = take(&mut self.w.expansions[k]);
            let mut spectra = take(&mut self.w.spectra);
            work(self.plan, field, self.w.strengths_of(k), *rows, &mut expansions, &mut spectra);
            (self.w.expansions[k], self.w.spectra) = (expansions, spectra);
        }
    }
}

/// M2P of a far field: adds the field of the multipole of box `source` at the targets of `range` to `out`.
fn from_multipole<T: Scalar>(
    plan: &Plan<T>,
    field: &Field<T>,
    (rows, expansions): (Rows, &Expansions<T>),
    source: usize,
    range: Range<usize>,
    out: &mut [f64],
) {
    let level = plan.tree.level_of(source);
    let frame = Frame::of(&plan.tree, source, level);
    let densities = expansions.multipoles[rows.range(source..source + 1)].chunks_exact(rows.len);
    let (tree, isa, operators) = (&plan.tree, plan.settings.isa, &field.operators[level]);
    if T::EPSILON > 1e-10 && !operators.kept.is_empty() {
        // Targets may lie far from the box, in units of its side. These kernels are homogeneous: their parameters are the
        // same on all levels.
        let (pair, inner, params) = (&plan.loops.far64, &plan.inner64, &field.plain_params);
        plan.pools.near64.with(|scratch| {
            let mut wide = take(&mut scratch.wide);
            wide.clear();
            for (set, density) in densities.enumerate() {
                net::in_f64(operators, rows.part(&expansions.net, set), source, density, &mut wide);
            }
            let densities = wide.chunks_exact(rows.len);
            from_nodes(pair, tree, frame, inner, densities, params, range, isa, scratch, out);
            scratch.wide = wide;
        });
    } else {
        plan.pools.points.with(|scratch| {
            let (pair, params) = (&plan.loops.far, &field.params[level]);
            from_nodes(pair, tree, frame, &plan.inner, densities, params, range, isa, scratch, out);
        });
    }
}

impl<T: Scalar> Stages for Run<'_, '_, T> {
    type Lists = Lists;

    fn levels(&self) -> usize {
        self.plan.tree.levels()
    }

    fn order(&self) -> Vec<Step> {
        match self.plan.elsewhere {
            None => Step::near_first(self.levels()),
            Some(_) => Step::in_order(self.levels()),
        }
    }

    fn scatter(&mut self) -> Result<(), Error> {
        self.tried(Stage::Scatter, |r| {
            let (tree, near) = (&r.plan.tree, &r.plan.loops.near64);
            let mut units: Vec<f64> = r.sets.iter().map(|(q, _)| near.largest(q, tree.side_at(0))).collect();
            ranks::largest(tree, &mut units)?;
            r.sets.iter_mut().zip(units).for_each(|((_, unit), largest)| *unit = power_of_two(largest));
            scatter(tree, &r.sets, near, &mut r.w.strengths);
            ranks::lend(tree, &r.w.strengths)?;
            let nodes = &r.plan.kernels.nodes;
            r.w.parts.resize_with(if nodes.count() > 1 { nodes.count() } else { 0 }, Vec::new);
            for (k, parts) in r.w.parts.iter_mut().enumerate() {
                take_part(&r.w.strengths, near, (nodes, k), parts);
            }
            for (k, field) in r.plan.fields.iter().enumerate() {
                let degrees = &near.strength_degrees;
                let mut expansions = take(&mut r.w.expansions[k]);
                expansions.net.clear();
                expansions.sums.clear();
                let kept = field.operators.first().map_or(&[][..], |operators| &operators.kept);
                for strengths in r.w.strengths_of(k).chunks_exact(degrees.len()) {
                    for &s in kept.iter().flatten() {
                        let sums = net::sums(tree, &r.plan.lists, strengths, s);
                        expansions.net.push(net::hatted(tree, &sums, degrees[s]));
                        if ranks::active(tree) {
                            expansions.sums.push((degrees[s], sums));
                        }
                    }
                }
                let ([multipoles, locals], sets) = (r.plan.rows(field), r.sets.len());
                clear(&mut expansions.multipoles, sets * multipoles);
                clear(&mut expansions.locals, sets * locals);
                r.w.expansions[k] = expansions;
            }
            clear(&mut r.w.values, tree.targets.len() * r.sets.len() * r.plan.loops.far.values());
            // On ranks, strengths of ghosts come with the exchange.
            if ranks::exchange(tree).is_none() { r.begin_near() } else { Ok(()) }
        })
    }

    fn p2m(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::P2m, |r| {
            r.for_each_field(|plan, field, strengths, [rows, _], to, _| {
                for level in 0..field.operators.len() {
                    let boxes = plan.tree.level(level);
                    if lists.p2m.starts[boxes.start] < lists.p2m.starts[boxes.end] {
                        points::p2m(
                            &plan.loops.check,
                            &plan.tree,
                            lists,
                            level,
                            &field.operators[level],
                            &field.own_params[level],
                            &plan.outer,
                            plan.settings.isa,
                            strengths,
                            &to.net,
                            &plan.pools.points,
                            &plan.pools.translate,
                            rows,
                            &mut to.multipoles,
                        );
                    }
                }
            });
        })
    }

    fn m2m(&mut self, lists: &Lists, level: usize) -> Result<(), Error> {
        self.timed(Stage::M2m, |r| {
            r.for_each_field(|plan, field, _, [rows, _], to, _| {
                if let Some(operators) = field.operators.get(level).filter(|_| !lists.m2m.is_empty()) {
                    let (isa, tree, pool) = (plan.settings.isa, &plan.tree, &plan.pools.translate);
                    translate::m2m(tree, &lists.m2m, level, operators, isa, &to.net, pool, rows, &mut to.multipoles);
                }
            });
        })
    }

    /// Counts as M2M, but for the near pairs that are summed meanwhile. Sources on ranks have no attributes, so that
    /// there is one far field, with the strengths of P2P.
    fn exchange(&mut self) -> Result<(), Error> {
        let (plan, tree) = (self.plan, &self.plan.tree);
        let Some(exchange) = ranks::exchange(tree) else { return Ok(()) };
        let (mut expansions, rows) = (take(&mut self.w.expansions), self.rows.clone());
        let components = self.w.strengths.len();
        let messages = move || {
            let ghosts = exchange.ghosts(components)?;
            for ((field, [rows, _]), to) in plan.fields.iter().zip(&rows).zip(&mut expansions) {
                to.sums.iter_mut().try_for_each(|(_, sums)| net::complete(tree, sums))?;
                if plan.rows(field)[0] > 0 {
                    ranks::complete(tree, &mut to.multipoles, rows.width())?;
                }
            }
            Ok((ghosts, expansions))
        };
        let start = Instant::now();
        let ((ghosts, expansions), near) = ranks::beside(exchange, messages, |goes_on| {
            self.near(&plan.lists, |leaf| goes_on() && ranks::early(tree, &plan.lists, leaf));
        })?;
        self.w.expansions = expansions;
        ranks::put(tree.shared.as_deref(), &ghosts, &mut self.w.strengths);
        self.begin_near()?;
        for ((field, [rows, _]), to) in plan.fields.iter().zip(&self.rows).zip(&mut self.w.expansions) {
            for ((degree, sums), net) in to.sums.iter().zip(&mut to.net) {
                *net = net::hatted(tree, sums, *degree);
            }
            let Some(after) = ranks::after(tree) else { continue };
            for level in ranks::levels_of(tree, after) {
                let (isa, operators, pool) = (plan.settings.isa, &field.operators[level], &plan.pools.translate);
                translate::m2m(tree, after, level, operators, isa, &to.net, pool, *rows, &mut to.multipoles);
            }
        }
        self.seconds[Stage::P2p as usize] += near;
        self.seconds[Stage::M2m as usize] += start.elapsed().as_secs_f64() - near;
        Ok(())
    }

    fn m2l(&mut self, _lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::M2l, |r| {
            let all = r.sets.len();
            r.for_each_field(|plan, field, _, [multipoles, locals], to, spectra| {
                for (level, arranged) in plan.geometry.m2l.iter().enumerate() {
                    let Some(table) = &field.tables[level] else { continue };
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
                            (multipoles, &to.multipoles[multipoles.range(boxes.clone())]),
                            (locals, &mut to.locals[locals.range(boxes.clone())]),
                            spectra,
                        );
                    }
                }
            });
        })
    }

    fn p2l(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::P2l, |r| {
            r.for_each_field(|plan, field, strengths, [_, rows], to, _| {
                for level in 0..field.operators.len() {
                    points::p2l(
                        &plan.loops.check,
                        &plan.tree,
                        lists,
                        level,
                        &field.params[level],
                        &plan.inner,
                        plan.settings.isa,
                        strengths,
                        &plan.pools.points,
                        rows,
                        &mut to.locals,
                    );
                }
            });
        })
    }

    fn l2l(&mut self, lists: &Lists, level: usize) -> Result<(), Error> {
        self.timed(Stage::L2l, |r| {
            r.for_each_field(|plan, field, _, [_, rows], to, _| {
                if let Some(operators) = field.operators.get(level).filter(|_| lists.have_locals()) {
                    let parents = level.checked_sub(1).map(|l| &*field.operators[l]);
                    let (active, pool, locals) = (&plan.geometry.active, &plan.pools.translate, &mut to.locals);
                    let (tree, affine, isa) = (&plan.tree, &field.affine, plan.settings.isa);
                    translate::l2l(tree, lists, level, operators, parents, affine, active, isa, pool, rows, locals);
                }
            });
        })
    }

    fn l2p(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::L2p, |r| {
            let (plan, rows) = (r.plan, r.rows.clone());
            let density = plan.multipole_row();
            if lists.l2p.is_empty() {
                return;
            }
            r.for_each_leaf(|leaf, level, out, w| {
                if lists.l2p.row(leaf).is_empty() {
                    return;
                }
                for ((field, [_, rows]), from) in plan.fields.iter().zip(&rows).zip(&w.expansions) {
                    plan.pools.points.with(|scratch| {
                        let frame = Frame::of(&plan.tree, leaf, level);
                        let locals = &from.locals[rows.range(leaf..leaf + 1)];
                        let (params, range) = (&field.own_params[level], plan.tree.targets_of(leaf));
                        let (tree, affine, isa) = (&plan.tree, &field.affine, plan.settings.isa);
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
            let (plan, rows) = (r.plan, r.rows.clone());
            if lists.m2p.is_empty() {
                return;
            }
            r.for_each_leaf(|leaf, _, out, w| {
                let range = plan.tree.targets_of(leaf);
                for &source in lists.m2p.row(leaf) {
                    for ((field, [rows, _]), from) in plan.fields.iter().zip(&rows).zip(&w.expansions) {
                        from_multipole(plan, field, (*rows, from), source as usize, range.clone(), out);
                    }
                }
            });
        })
    }

    fn p2p(&mut self, lists: &Lists) -> Result<(), Error> {
        if let Some(near) = self.near.take() {
            self.seconds[Stage::P2p as usize] += near.add(self.plan.loops.near64.values(), &mut self.w.values)?;
            return Ok(());
        }
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
