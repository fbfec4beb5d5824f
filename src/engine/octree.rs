//! The engine of the fast methods on an octree, on the CPU.

use super::{Engine, Placed, Placement, ProbeSeconds, Watch};
use super::{bounds_of, build_options, errors_of_attributes, list_options, not_placed, picked, trial_of};
use crate::choice::Choice;
use crate::cloud::Cloud;
use crate::mesh::{Edges, Mesh, PlanSeconds};
use crate::near::NearBlock;
use crate::parts::Parts;
use crate::probe::Trial;
use crate::probe::on_host::OnHost;
use crate::probe::sample::Sample;
use crate::request::Fmm;
use crate::variant::Expansion;
use backend_cpu::{OctreeSolver, Settings};
use fmm_families::{Expansion as Carrier, in_space};
use fmm_kernels::equivalent::Fill;
use fmm_traits::{Cube, Error, Lists, Points, Policy, Precision, Solver, Stage, StageSeconds, Tree};
use fmm_tree::{BuildOptions, ListOptions, TreecodeOptions};
use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

/// A fast method on an octree.
pub(crate) struct Octree {
    request: Fmm,
    choice: Choice,
    parts: Parts,
    /// `None` before the first points are settled.
    solver: Option<Box<dyn OctreeSolver>>,
    /// Order of the solver.
    order: usize,
    /// The sources that the output shows, if an evaluation at all sources serves a subset.
    pick: Option<Vec<usize>>,
    /// New points before they are settled.
    site: Option<Site>,
    /// Where other candidates find the tree of points that are not settled.
    sites: Weak<Sites>,
}

/// Largest number of trees that a plan keeps while its candidates are tried.
const TREES_KEPT: usize = 2;

/// The trees that candidates of a plan have built and left, with their samples. Another candidate that wants the same
/// tree takes it.
#[derive(Default)]
pub(crate) struct Sites(Mutex<Vec<Site>>);

impl Sites {
    fn kept(&self) -> MutexGuard<'_, Vec<Site>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn take(&self, options: &BuildOptions, policy: Policy) -> Option<Site> {
        let mut kept = self.kept();
        let at = kept.iter().position(|site| site.options == *options && site.policy == policy)?;
        Some(kept.remove(at))
    }
    fn keep(&self, site: Site) {
        let mut kept = self.kept();
        kept.push(site);
        if kept.len() > TREES_KEPT {
            kept.remove(0);
        }
    }
}

/// New points in their tree, before the order is known.
struct Site {
    options: BuildOptions,
    policy: Policy,
    tree: Tree,
    placed: Placed,
    /// Smallest distance at which a treecode sees a box as a whole.
    near: f64,
    pick: Option<Vec<usize>>,
    /// The last lists, with their options.
    lists: Option<(ListOptions, Lists)>,
    /// The last sample, with the number of edges between points and expansions in the lists from which it was drawn. Lists
    /// of this tree with as many edges are the same.
    trial: Option<(usize, Trial)>,
}

impl Site {
    /// The lists of an order, made anew if the options changed.
    fn lists(&mut self, parts: &Parts, order: usize) -> Result<&Lists, Error> {
        let options = list_options(order, parts);
        if self.lists.as_ref().is_none_or(|(made, _)| *made != options) {
            self.lists = Some((options, lists(&self.tree, parts, &options, self.near)?));
        }
        Ok(&self.lists.as_ref().expect("just made").1)
    }

    /// Tree and lists with the sample on which errors are measured.
    fn sampled(
        &mut self,
        (r, c, parts): (&Fmm, &Choice, &Parts),
        order: usize,
    ) -> Result<(&Tree, &Lists, &Trial), Error> {
        self.lists(parts, order)?;
        let (tree, lists) = (&self.tree, &self.lists.as_ref().expect("just made").1);
        let edges = Edges::of(lists).of_points();
        let kept = self.trial.take().filter(|(drawn, _)| *drawn == edges);
        let kept = match kept {
            Some(kept) => kept,
            None => {
                let site = OnHost::new(tree, lists, parts.policy.theta());
                (edges, trial_of(r, c, &site, r.precision == Precision::F32)?)
            }
        };
        Ok((tree, lists, &self.trial.insert(kept).1))
    }
}

/// The lists of a policy. For softened kernels, a treecode sees no box as a whole at a distance below `near`. For the
/// other policies, boxes that are large enough suffice.
pub(super) fn lists(tree: &Tree, parts: &Parts, options: &ListOptions, near: f64) -> Result<Lists, Error> {
    let theta = match parts.policy {
        Policy::Uvwx => return fmm_tree::uvwx(tree, options),
        Policy::Stencil119 => return fmm_tree::stencil119(tree, options),
        Policy::Treecode { theta } => theta,
    };
    let options = TreecodeOptions { theta, m2p_min_sources: options.m2p_min_sources };
    fmm_tree::treecode(tree, &options, |t, s| seen_whole(parts, near, t, s))
}

/// Whether a treecode may see the source box `s` as a whole from all of `t`, whatever the opening angle.
pub(super) fn seen_whole(parts: &Parts, near: f64, t: Cube, s: Cube) -> bool {
    let valid = match parts.expansion {
        Expansion::Spherical => fmm_kernels::spherical::expansion::m2p_valid,
        Expansion::Equivalent | Expansion::Interpolation => fmm_kernels::equivalent::expansion::m2p_valid,
    };
    let gap = |a: usize| ((t.center[a] - s.center[a]).abs() - 0.5 * (t.side + s.side)).max(0.0);
    valid(t, s) && (near == 0.0 || gap(0).hypot(gap(1)).hypot(gap(2)) >= near)
}

/// A solver of an order for a tree and its lists.
pub(crate) fn solver(
    r: &Fmm,
    choice: &Choice,
    parts: &Parts,
    order: usize,
    tree: Tree,
    lists: Lists,
) -> Result<Box<dyn OctreeSolver>, Error> {
    let near = r.backend.processor().near_fields(r)?;
    let settings = Settings { order, precision: r.precision, isa: choice.isa, cache: r.cache.clone(), near };
    let (mut kernels, expansion) = match parts.expansion {
        Expansion::Spherical => (r.family.in_space(r.outputs)?, Carrier::Spherical(parts.harmonics())),
        Expansion::Equivalent => (r.family.in_space(r.outputs)?, Carrier::Equivalent(Fill::Surface)),
        Expansion::Interpolation => (r.family.in_volume(r.outputs)?, Carrier::Equivalent(Fill::Volume)),
    };
    kernels.kernels.nodes = r.attributes.nodes(&kernels.kernels, parts.grid.nodes);
    kernels.solver(tree, lists, &settings, expansion)
}

/// The small problem of a trial: its sources that give errors, and its targets.
fn thinned(tree: &Tree, lists: &Lists, trial: &Trial) -> (Tree, Lists) {
    fmm_tree::thin(tree, lists, &trial.drawn.sample.of_errors.positions, &trial.drawn.sample.targets)
}

impl Octree {
    pub fn new(request: &Fmm, choice: &Choice, parts: Parts) -> Self {
        let (request, choice) = (request.clone(), choice.clone());
        Octree { request, choice, parts, solver: None, order: 0, pick: None, site: None, sites: Weak::new() }
    }
}

impl Drop for Octree {
    fn drop(&mut self) {
        if let (Some(site), Some(sites)) = (self.site.take(), self.sites.upgrade()) {
            sites.keep(site);
        }
    }
}

impl Engine for Octree {
    fn asked(&self) -> (&Fmm, &Choice) {
        (&self.request, &self.choice)
    }

    fn place(&mut self, cloud: &Cloud, watch: Watch) -> Result<(), Error> {
        let (sources, targets) = cloud.on_host()?;
        let options = build_options(&self.request, &self.choice, &self.parts);
        let policy = self.parts.policy;
        self.sites = cloud.sites().map_or_else(Weak::new, Arc::downgrade);
        if let Some(site) = cloud.sites().and_then(|sites| sites.take(&options, policy)) {
            self.site = Some(site);
            return Ok(());
        }
        let placement = Placement::of(&self.choice.facts, sources, targets);
        watch("tree", 0.0)?;
        let start = Instant::now();
        let dim = self.parts.dim;
        let targets = placement.points().map(|points| in_space(dim, points));
        let (tree, report) = fmm_tree::build_reported(&in_space(dim, sources), targets.as_deref(), &options)?;
        let seconds = PlanSeconds { tree: start.elapsed().as_secs_f64(), ..PlanSeconds::default() };
        let mut placed = Placed { report, seconds };
        placed.say_softening(options.min_side);
        let (near, pick) = (options.min_side, placement.into_pick());
        self.site = Some(Site { options, policy, tree, placed, near, pick, lists: None, trial: None });
        Ok(())
    }

    fn preview(&mut self, order: usize) -> Result<Mesh, Error> {
        let Some(site) = &mut self.site else { return not_placed() };
        site.lists(&self.parts, order)?;
        let lists = &site.lists.as_ref().expect("just made").1;
        Ok(Mesh::of(&site.tree, lists, site.tree.leaves(), site.tree.side))
    }

    fn measure(&mut self, order: usize) -> Result<(Vec<f64>, ProbeSeconds), Error> {
        let (r, c, parts) = (&self.request, &self.choice, &self.parts);
        let Some(site) = &mut self.site else { return not_placed() };
        let start = Instant::now();
        let (tree, lists, trial) = site.sampled((r, c, parts), order)?;
        let (tree, lists) = thinned(tree, lists, trial);
        let mut seconds = ProbeSeconds { sums: start.elapsed().as_secs_f64(), operators: 0.0 };
        let start = Instant::now();
        let solver = solver(r, c, parts, order, tree, lists)?;
        seconds.operators = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let bounds = bounds_of(r, c, trial, &*solver)?;
        seconds.sums += start.elapsed().as_secs_f64();
        Ok((bounds, seconds))
    }

    fn errors_of_attributes(&mut self, order: usize, nodes: usize) -> Result<Vec<f64>, Error> {
        let (r, c, parts) = (&self.request, &self.choice, &self.parts);
        let Some(site) = &mut self.site else { return not_placed() };
        let (tree, lists, trial) = site.sampled((r, c, parts), order)?;
        let one = match nodes {
            1 => {
                let (tree, lists) = thinned(tree, lists, trial);
                Some(solver(&r.clone().precision(Precision::F64), c, parts, order, tree, lists)?)
            }
            _ => None,
        };
        let one = one.as_ref().map(|solver| &**solver as &dyn Solver);
        errors_of_attributes((r, c), trial, &OnHost::new(tree, lists, parts.policy.theta()), nodes, one)
    }

    fn sample(&self) -> Option<&Sample> {
        Some(&self.site.as_ref()?.trial.as_ref()?.1.drawn.sample)
    }

    fn forget(&mut self) {
        self.site = None;
    }

    fn settle(&mut self, order: usize, watch: Watch) -> Result<Placed, Error> {
        let Some(mut site) = self.site.take() else { return not_placed() };
        let mut placed = std::mem::take(&mut site.placed);
        watch("lists", 0.3)?;
        let start = Instant::now();
        site.lists(&self.parts, order)?;
        placed.seconds.lists = start.elapsed().as_secs_f64();
        watch("operators", 0.5)?;
        let start = Instant::now();
        let (tree, lists) = (site.tree, site.lists.expect("just made").1);
        match &mut self.solver {
            Some(solver) if self.order == order => solver.set_tree(tree, lists)?,
            _ => self.solver = Some(solver(&self.request, &self.choice, &self.parts, order, tree, lists)?),
        }
        placed.seconds.operators = start.elapsed().as_secs_f64();
        (self.order, self.choice.order, self.pick) = (order, Some(order), site.pick);
        Ok(placed)
    }

    fn run(&self, strengths: &[&[f64]], rows: &mut [&mut [f64]], watch: Watch) -> Result<StageSeconds, Error> {
        let Some(solver) = &self.solver else { return Ok(StageSeconds::default()) };
        let mut observer = |stage: Stage, done: f64| watch(stage.name(), done).is_ok();
        let (pick, n_sources, values) = (self.pick.as_deref(), solver.tree().sources.len(), self.choice.facts.values);
        picked(pick, n_sources, values, rows, |rows| solver.apply_batch(strengths, rows, &mut observer))
    }

    fn together(&self) -> (usize, u64) {
        self.solver.as_ref().map_or((1, 0), |s| (s.together(), s.bytes_of_a_set()))
    }

    fn points(&self) -> Result<(Vec<f64>, Vec<f64>), Error> {
        let Some(tree) = self.solver.as_ref().map(|s| s.tree()) else { return Ok(Default::default()) };
        let dim = self.parts.dim;
        let targets = if tree.same_points() { Vec::new() } else { user_order(&tree.targets, dim) };
        Ok((user_order(&tree.sources, dim), targets))
    }

    fn mesh(&self) -> Mesh {
        let Some(solver) = &self.solver else { return Mesh::default() };
        Mesh::of(solver.tree(), solver.lists(), solver.tree().leaves(), solver.tree().side)
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

/// For each source, the output rows that show the source, if a `pick` chooses sources from an evaluation at all
/// sources.
pub(super) fn rows_of_sources(pick: Option<&[usize]>, n_sources: usize) -> Option<Vec<Vec<u32>>> {
    let mut rows = vec![Vec::new(); n_sources];
    for (row, &i) in pick?.iter().enumerate() {
        rows[i].push(row as u32);
    }
    Some(rows)
}

/// The U list as blocks of pairs. `rows` holds the output rows of each source ([`rows_of_sources`]); `None` if row i
/// shows target i.
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

/// The points of a tree in the caller's order, N×`dim`.
fn user_order(points: &Points, dim: usize) -> Vec<f64> {
    let mut out = vec![0.0; dim * points.len()];
    for (k, &i) in points.order.iter().enumerate() {
        for a in 0..dim {
            out[dim * i as usize + a] = points.xyz[a][k];
        }
    }
    out
}
