//! Octree and lists on the CPU.

use super::{Engine, Mesh, Placed, Placement, Seconds, Watch, build_options, order_of_densities, picked};
use crate::choose::Choice;
use crate::describe::Edges;
use crate::near::NearBlock;
use crate::request::{Fmm, Targets};
use crate::tuning;
use crate::variant::{Expansion, Parts, Policy};
use backend_cpu::spherical::estimate::{Estimate, Question};
use backend_cpu::{Settings, Solver};
use fmm_traits::{Cube, Error, Lists, Points, Stage, Tree};
use fmm_tree::TreecodeOptions;
use std::borrow::Cow;
use std::time::Instant;

/// A fast method on an octree.
pub(crate) struct Octree {
    request: Fmm,
    choice: Choice,
    parts: Parts,
    /// None before the first points.
    solver: Option<Box<dyn Solver>>,
    /// That of the solver.
    order: Option<usize>,
    /// The sources that are shown, when an evaluation at all sources serves a subset.
    pick: Option<Vec<usize>>,
}

impl Octree {
    pub(super) fn new(request: &Fmm, choice: &Choice, parts: Parts) -> Self {
        Octree { request: request.clone(), choice: choice.clone(), parts, solver: None, order: None, pick: None }
    }

    /// The lists of the policy. A treecode sees no box as a whole that is nearer than `near` (softened kernels); other
    /// policies need only boxes that are large enough.
    fn lists(&self, tree: &Tree, order: usize, near: f64) -> Result<Lists, Error> {
        let parts = &self.parts;
        let options = tuning::list_options(order, parts);
        let theta = match parts.policy {
            Policy::Uvwx => return fmm_tree::uvwx(tree, &options),
            Policy::Stencil119 => return fmm_tree::stencil119(tree, &options),
            Policy::Treecode { theta } => theta,
        };
        let valid = match parts.expansion {
            Expansion::Spherical => fmm_kernels::spherical::expansion::m2p_valid,
            Expansion::Equivalent => fmm_kernels::equivalent::expansion::m2p_valid,
        };
        let apart = |t: Cube, s: Cube| {
            let gap = |a: usize| ((t.center[a] - s.center[a]).abs() - 0.5 * (t.side + s.side)).max(0.0);
            gap(0).hypot(gap(1)).hypot(gap(2)) >= near
        };
        let options = TreecodeOptions { theta, m2p_min_sources: options.m2p_min_sources };
        fmm_tree::treecode(tree, &options, |t, s| valid(t, s) && (near == 0.0 || apart(t, s)))
    }
}

/// Orders beyond the typical one that are looked at first.
const FURTHER: usize = 3;

impl Octree {
    /// The order for a tree: with a tolerance the one that its points ask for, `usual` if they are not looked at. Whether all sources
    /// are targets says `all`.
    fn order(&self, tree: &Tree, lists: &Lists, usual: usize, all: bool) -> Result<usize, Error> {
        let (c, r, parts, sources) = (&self.choice, &self.request, &self.parts, tree.sources.len());
        if parts.expansion == Expansion::Equivalent {
            return order_of_densities((r, c, parts), sources, all, usual, || Ok(fmm_tree::closeness(tree)));
        }
        let Some(tolerance) = c.tolerance else { return Ok(usual) };
        let family = &r.family;
        let scene = tuning::Scene { sources, apart: !tree.same_points(), ncrit: r.ncrit, again: true };
        let soft = family.near_radius(1.0);
        let outputs = 1 + tuning::derivatives(family.name(), r.outputs);
        let estimated = |least: usize, orders: usize| {
            let truncation = parts.spherical.truncation;
            let question = Question { truncation, least, orders, outputs, soft, isa: c.isa };
            let estimate = Estimate::new(tree, lists, question);
            tuning::order_on(&estimate, family.name(), r.outputs, tolerance, r.precision, scene, parts)
        };
        estimated(usual / 2 + 1, usual + FURTHER).or_else(|_| estimated(usual, fmm_kernels::spherical::MAX_ORDER))
    }
}

impl Engine for Octree {
    fn asked(&self) -> (&Fmm, &Choice) {
        (&self.request, &self.choice)
    }

    fn place(&mut self, sources: &[f64], targets: Targets<'_>, watch: Watch) -> Result<Placed, Error> {
        let (c, r) = (&self.choice, &self.request);
        let order = c.order.unwrap_or(tuning::MAX_ORDER);
        let options = build_options(r, c, &self.parts);
        let all = matches!(targets, Targets::Sources);
        let placement = Placement::of(&c.facts, sources, targets);
        let mut placed = Placed::default();
        let clock = |seconds: &mut f64, start: Instant| *seconds = start.elapsed().as_secs_f64();

        watch("tree", 0.0)?;
        let start = Instant::now();
        let (tree, report) = fmm_tree::build_reported(sources, placement.points(), &options)?;
        placed.report = report;
        clock(&mut placed.seconds.tree, start);

        watch("lists", 0.3)?;
        let start = Instant::now();
        let lists = self.lists(&tree, order, options.min_side)?;
        let order = self.order(&tree, &lists, order, all)?;
        clock(&mut placed.seconds.lists, start);

        watch("operators", 0.5)?;
        let start = Instant::now();
        match &mut self.solver {
            Some(solver) if self.order >= Some(order) => solver.set_tree(tree, lists)?,
            _ => {
                let settings = Settings { order, precision: r.precision, isa: c.isa, cache: r.cache.clone() };
                let spherical = (self.parts.expansion == Expansion::Spherical).then_some(self.parts.spherical);
                self.solver = Some(r.family.in_space()?.solver(r.outputs, tree, lists, &settings, spherical)?);
                self.order = Some(order);
            }
        }
        clock(&mut placed.seconds.operators, start);
        self.pick = placement.into_pick();
        placed.say_softening(options.min_side);
        Ok(placed)
    }

    fn run(&self, strengths: &[&[f64]], rows: &mut [&mut [f64]], watch: Watch) -> Result<Seconds, Error> {
        let Some(solver) = &self.solver else { return Ok(Seconds::default()) };
        let mut observer = |stage: Stage, done: f64| watch(stage.name(), done).is_ok();
        let (pick, n_sources, values) = (self.pick.as_deref(), solver.tree().sources.len(), self.choice.facts.values);
        picked(pick, n_sources, values, rows, |rows| Ok(solver.apply_batch(strengths, rows, &mut observer)?.0))
    }

    fn together(&self) -> (usize, u64) {
        self.solver.as_ref().map_or((1, 0), |s| (s.together(), s.bytes_of_a_set()))
    }

    fn order(&self) -> Option<usize> {
        self.order
    }

    fn points(&self) -> (Vec<f64>, Vec<f64>) {
        let Some(tree) = self.solver.as_ref().map(|s| s.tree()) else { return Default::default() };
        let targets = if tree.same_points() { Vec::new() } else { user_order(&tree.targets) };
        (user_order(&tree.sources), targets)
    }

    fn mesh(&self) -> Mesh {
        let Some(solver) = &self.solver else { return Mesh::default() };
        let (tree, lists) = (solver.tree(), solver.lists());
        let pairs =
            |(t, s): (u32, u32)| tree.targets_of(t as usize).len() as u64 * tree.sources_of(s as usize).len() as u64;
        Mesh {
            levels: tree.levels(),
            boxes: tree.len(),
            leaves: tree.leaves(),
            root_side: tree.side,
            edges: Edges::of(lists),
            near_pairs: lists.p2p.iter().map(pairs).sum(),
        }
    }

    fn near_field(&self) -> Box<dyn Iterator<Item = NearBlock<'_>> + '_> {
        let Some(solver) = &self.solver else { return Box::new(std::iter::empty()) };
        let (tree, lists) = (solver.tree(), solver.lists());
        blocks(tree, lists, rows_of_sources(self.pick.as_deref(), tree.sources.len()))
    }

    fn bytes(&self) -> u64 {
        self.solver.as_ref().map_or(0, |s| s.bytes())
    }
}

/// For a subset picked from an evaluation at all sources: the rows that show each source.
pub(super) fn rows_of_sources(pick: Option<&[usize]>, n_sources: usize) -> Option<Vec<Vec<u32>>> {
    let mut rows = vec![Vec::new(); n_sources];
    for (row, &i) in pick?.iter().enumerate() {
        rows[i].push(row as u32);
    }
    Some(rows)
}

/// The U list as blocks of pairs; `rows`: the rows that show each source, where not each has its own.
pub(super) fn blocks<'a>(
    tree: &'a Tree,
    lists: &'a Lists,
    rows: Option<Vec<Vec<u32>>>,
) -> Box<dyn Iterator<Item = NearBlock<'a>> + 'a> {
    let blocks = lists.p2p.iter().map(move |(t, s)| {
        let targets = &tree.targets.order[tree.targets_of(t as usize)];
        let targets = match &rows {
            None => Cow::Borrowed(targets),
            Some(rows) => targets.iter().flat_map(|&i| rows[i as usize].iter().copied()).collect(),
        };
        NearBlock { targets, sources: Cow::Borrowed(&tree.sources.order[tree.sources_of(s as usize)]) }
    });
    Box::new(blocks.filter(|b: &NearBlock| !b.targets.is_empty()))
}

/// Points of a tree as the caller gave them.
fn user_order(points: &Points) -> Vec<f64> {
    let mut out = vec![0.0; 3 * points.len()];
    for (k, &i) in points.order.iter().enumerate() {
        for a in 0..3 {
            out[3 * i as usize + a] = points.xyz[a][k];
        }
    }
    out
}
