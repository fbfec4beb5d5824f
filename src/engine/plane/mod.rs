//! The engine of the plane: pyramid, θ-criterion and Laurent series on the CPU (Goude & Engblom 2012). `device` has the
//! engine on a GPU.

mod device;

pub(crate) use device::PlaneOnDevice;

use super::{Engine, Placed, Placement, ProbeSeconds, Watch, one_by_one, trial_of};
use crate::choice::Choice;
use crate::cloud::Cloud;
use crate::costs;
use crate::mesh::Mesh;
use crate::near::NearBlock;
use crate::probe::Trial;
use crate::probe::on_host::OnHost;
use crate::probe::sample::Sample;
use crate::request::Fmm;
use adaptive2d::{ConnectOptions, Norm, PlanePoints, Pyramid, PyramidOptions, connect};
use backend_cpu::Workspaces;
use backend_cpu::laurent::{LaurentPlan, LaurentWorkspace, PlanePairs};
use fmm_families::derivatives;
use fmm_traits::tree::NONE;
use fmm_traits::{Error, Hierarchy, Lists, Stage, StageSeconds};
use std::borrow::Cow;
use std::time::Instant;

/// The two-dimensional method.
pub(crate) struct Plane {
    pairs: PlanePairs,
    /// Order of the derivatives that the outputs need.
    derivatives: usize,
    request: Fmm,
    choice: Choice,
    theta: f64,
    plan: Option<LaurentPlan>,
    /// New points before they are settled.
    site: Option<Site>,
    /// One workspace per concurrent evaluation.
    workspaces: Workspaces<LaurentWorkspace>,
}

/// New points in their pyramid, before the order is known.
struct Site {
    pyramid: Pyramid,
    lists: Lists,
    placed: Placed,
    sampled: Option<Sampled>,
}

/// A sample on which errors are measured, and the small problem of its points.
struct Sampled {
    trial: Trial,
    thin: Thinned,
    workspace: LaurentWorkspace,
}

impl Sampled {
    fn new(trial: Trial, thin: Thinned) -> Self {
        Sampled { trial, thin, workspace: LaurentWorkspace::default() }
    }

    /// Bounds of the errors of a plan for the small problem, one per output of the facts.
    fn bounds(&mut self, plan: &LaurentPlan, request: &Fmm, choice: &Choice) -> Result<Vec<f64>, Error> {
        let Sampled { trial, workspace, .. } = self;
        let mut rows =
            vec![vec![0.0; trial.drawn.sample.targets.len() * choice.facts.values]; trial.drawn.strengths.len()];
        for (strengths, rows) in trial.drawn.strengths.iter().zip(&mut rows) {
            plan.apply(workspace, strengths, rows, &mut |_, _| true)?;
        }
        Ok(trial.bounds(rows, &choice.facts, request.norm))
    }
}

/// A pyramid and its lists, with a part of the points.
type Thinned = (Pyramid, Lists);

/// The part of a pyramid and its lists that the points of a trial need.
fn thinned(pyramid: &Pyramid, lists: &Lists, trial: &Trial) -> Thinned {
    let small = pyramid.thinned(&trial.drawn.sample.of_errors.positions, &trial.drawn.sample.targets);
    let all: Vec<u32> = (0..small.boxes() as u32).collect();
    let with = |range: fn(&Pyramid, usize) -> std::ops::Range<usize>| -> Vec<u32> {
        all.iter().map(|&b| if range(&small, b as usize).is_empty() { NONE } else { b }).collect()
    };
    let (sources, targets) = (with(Hierarchy::sources_of), with(Hierarchy::targets_of));
    let lists = fmm_tree::restrict(lists, &all, &sources, &targets);
    (small, lists)
}

/// The blocks of the near field.
fn near_blocks<'a>(pyramid: &'a Pyramid, lists: &'a Lists) -> Box<dyn Iterator<Item = NearBlock<'a>> + 'a> {
    Box::new(lists.p2p.iter().map(|(t, s)| NearBlock {
        targets: Cow::Borrowed(&pyramid.targets.order[pyramid.targets_of(t as usize)]),
        sources: Cow::Borrowed(&pyramid.sources.order[pyramid.sources_of(s as usize)]),
    }))
}

impl Plane {
    pub(crate) fn new(request: &Fmm, choice: &Choice, pairs: PlanePairs, theta: f64) -> Self {
        Plane {
            pairs,
            derivatives: derivatives(request.outputs),
            request: request.clone(),
            choice: choice.clone(),
            theta,
            plan: None,
            site: None,
            workspaces: Workspaces::default(),
        }
    }

    /// Whether near pairs are summed with reciprocals of 28 bits.
    fn rough(&self) -> bool {
        // The largest relative error occurs at a target whose near terms cancel. So the near field needs one more
        // digit.
        let cancelling = if self.request.norm == Norm::Max { 10.0 } else { 1.0 };
        self.choice.tolerance.is_some_and(|t| t >= cancelling * costs::ROUGH_NEAR_FIELD)
    }

    /// A plan of an order.
    fn planned(&self, order: usize, pyramid: Pyramid, lists: Lists) -> Result<LaurentPlan, Error> {
        let shape = (order, self.derivatives);
        let plan = LaurentPlan::new(self.pairs, shape, pyramid, lists, self.choice.isa, self.rough())?;
        Ok(plan.shortened(self.theta))
    }

    /// The sums of one set of strengths.
    fn one(&self, strengths: &[f64], rows: &mut [f64], watch: Watch) -> Result<StageSeconds, Error> {
        let Some(plan) = &self.plan else { return Ok(StageSeconds::default()) };
        let mut workspace = self.workspaces.take();
        let mut observer = |stage: Stage, done: f64| watch(stage.name(), done).is_ok();
        let done = plan.apply(&mut workspace, strengths, rows, &mut observer);
        self.workspaces.put(workspace);
        done
    }
}

impl Engine for Plane {
    fn asked(&self) -> (&Fmm, &Choice) {
        (&self.request, &self.choice)
    }

    fn place(&mut self, cloud: &Cloud, watch: Watch) -> Result<(), Error> {
        let (sources, targets) = cloud.on_host()?;
        let c = &self.choice;
        // Kernels of the plane are singular. So a subset becomes separate points, and there is no pick.
        let placement = Placement::of(&c.facts, sources, targets);
        let mut placed = Placed::default();
        placed.report.ncrit = c.occupancy.ceil() as usize;

        watch("tree", 0.0)?;
        let start = Instant::now();
        let options = PyramidOptions { population: c.occupancy, ..PyramidOptions::default() };
        let pyramid = Pyramid::build(sources, placement.points(), &options)?;
        placed.seconds.tree = start.elapsed().as_secs_f64();

        watch("lists", 0.5)?;
        let start = Instant::now();
        let lists = connect(&pyramid, &ConnectOptions { theta: self.theta, ..ConnectOptions::default() })?;
        placed.seconds.lists = start.elapsed().as_secs_f64();
        self.site = Some(Site { pyramid, lists, placed, sampled: None });
        Ok(())
    }

    fn preview(&mut self, _: usize) -> Result<Mesh, Error> {
        Ok(self.site.as_ref().map_or_else(Mesh::default, |s| mesh(&s.pyramid, &s.lists)))
    }

    fn measure(&mut self, order: usize) -> Result<(Vec<f64>, ProbeSeconds), Error> {
        let start = Instant::now();
        let Some(mut site) = self.site.take() else { return Ok(Default::default()) };
        let (r, c) = (&self.request, &self.choice);
        let mut sampled = match site.sampled.take() {
            Some(sampled) => sampled,
            None => {
                let (pyramid, lists) = (&site.pyramid, &site.lists);
                let trial = trial_of(r, c, &OnHost::new(pyramid, lists, None), self.rough())?;
                let thin = thinned(pyramid, lists, &trial);
                Sampled::new(trial, thin)
            }
        };
        let (pyramid, lists) = sampled.thin.clone();
        let bounds = sampled.bounds(&self.planned(order, pyramid, lists)?, r, c)?;
        site.sampled = Some(sampled);
        self.site = Some(site);
        Ok((bounds, ProbeSeconds { sums: start.elapsed().as_secs_f64(), operators: 0.0 }))
    }

    fn sample(&self) -> Option<&Sample> {
        Some(&self.site.as_ref()?.sampled.as_ref()?.trial.drawn.sample)
    }

    fn forget(&mut self) {
        self.site = None;
    }

    fn settle(&mut self, order: usize, _watch: Watch) -> Result<Placed, Error> {
        let Some(site) = self.site.take() else { return Ok(Placed::default()) };
        self.plan = Some(self.planned(order, site.pyramid, site.lists)?);
        self.choice.order = Some(order);
        Ok(site.placed)
    }

    fn run(&self, strengths: &[&[f64]], rows: &mut [&mut [f64]], watch: Watch) -> Result<StageSeconds, Error> {
        one_by_one(strengths, rows, |strengths, rows| self.one(strengths, rows, watch))
    }

    fn points(&self) -> Result<(Vec<f64>, Vec<f64>), Error> {
        let Some(pyramid) = self.plan.as_ref().map(|p| p.pyramid()) else { return Ok(Default::default()) };
        let targets = if pyramid.same_points() { Vec::new() } else { user_order(&pyramid.targets) };
        Ok((user_order(&pyramid.sources), targets))
    }

    fn mesh(&self) -> Mesh {
        self.plan.as_ref().map_or_else(Mesh::default, |plan| mesh(plan.pyramid(), plan.lists()))
    }

    fn near_field(&self) -> Box<dyn Iterator<Item = NearBlock<'_>> + '_> {
        let Some(plan) = &self.plan else { return Box::new(std::iter::empty()) };
        near_blocks(plan.pyramid(), plan.lists())
    }

    fn bytes(&self) -> u64 {
        let workspaces = self.workspaces.bytes(LaurentWorkspace::bytes);
        self.plan.as_ref().map_or(0, |p| p.bytes()) + workspaces
    }
}

/// Counts of a pyramid and its lists.
fn mesh(pyramid: &Pyramid, lists: &Lists) -> Mesh {
    Mesh::of(pyramid, lists, pyramid.level(pyramid.depth()).len(), 2.0 * pyramid.radius[0])
}

/// The points of a pyramid in the caller's order, N×2.
fn user_order(points: &PlanePoints) -> Vec<f64> {
    let mut out = vec![0.0; 2 * points.len()];
    for (k, &i) in points.order.iter().enumerate() {
        out[2 * i as usize] = points.x[k];
        out[2 * i as usize + 1] = points.y[k];
    }
    out
}
