//! Pyramid, θ-criterion and Laurent series on the CPU (Goude & Engblom 2012).

use super::{Engine, Mesh, Placed, Placement, Seconds, Watch, one_by_one};
use crate::choose::Choice;
use crate::describe::Edges;
use crate::near::NearBlock;
use crate::request::{Fmm, Targets};
use crate::tuning;
use adaptive2d::{ConnectOptions, Laurent, Norm, PlaneKernel, PlanePoints, PyramidOptions, connect, terms_for_copies};
use backend_cpu::Workspaces;
use backend_cpu::laurent::{LaurentPlan, LaurentWorkspace};
use fmm_families::{has_gradient, widen};
use fmm_traits::{Error, Hierarchy, Stage};
use std::borrow::Cow;
use std::time::Instant;

/// The two-dimensional method.
pub(crate) struct Plane {
    kernel: PlaneKernel,
    gradient: bool,
    request: Fmm,
    choice: Choice,
    theta: f64,
    plan: Option<LaurentPlan>,
    /// One for each evaluation that runs at the same time.
    workspaces: Workspaces<LaurentWorkspace>,
}

impl Plane {
    pub(super) fn new(request: &Fmm, choice: &Choice, kernel: PlaneKernel, theta: f64) -> Self {
        Plane {
            kernel,
            gradient: has_gradient(request.outputs),
            request: request.clone(),
            choice: choice.clone(),
            theta,
            plan: None,
            workspaces: Workspaces::default(),
        }
    }

    /// The sums of one set of strengths.
    fn one(&self, strengths: &[f64], rows: &mut [f64], watch: Watch) -> Result<Seconds, Error> {
        let Some(plan) = &self.plan else { return Ok(Seconds::default()) };
        let mut observer = |stage: Stage, done: f64| watch(stage.name(), done).is_ok();
        let mut workspace = self.workspaces.take();
        let values = self.choice.facts.values;
        let done = if plan.values() == values {
            plan.apply(&mut workspace, strengths, rows, &mut observer)
        } else {
            let mut narrow = vec![0.0; rows.len() / values * plan.values()];
            let done = plan.apply(&mut workspace, strengths, &mut narrow, &mut observer);
            widen(self.kernel, self.gradient, &narrow, rows);
            done
        };
        self.workspaces.put(workspace);
        Ok(done?.0)
    }
}

impl Engine for Plane {
    fn asked(&self) -> (&Fmm, &Choice) {
        (&self.request, &self.choice)
    }

    fn place(&mut self, sources: &[f64], targets: Targets<'_>, watch: Watch) -> Result<Placed, Error> {
        let c = &self.choice;
        // Kernels of the plane are singular: subsets are points, and nothing is picked.
        let placement = Placement::of(&c.facts, sources, targets);
        let mut placed = Placed::default();
        placed.report.ncrit = c.occupancy.ceil() as usize;

        watch("tree", 0.0)?;
        let start = Instant::now();
        let options = PyramidOptions { population: c.occupancy, depth: None };
        let pyramid = adaptive2d::Pyramid::build(sources, placement.points(), &options)?;
        placed.seconds.tree = start.elapsed().as_secs_f64();

        watch("lists", 0.5)?;
        let start = Instant::now();
        let lists = connect(&pyramid, &ConnectOptions { theta: self.theta, ..ConnectOptions::default() })?;
        placed.seconds.lists = start.elapsed().as_secs_f64();

        let most = adaptive2d::laurent::MAX_ORDER;
        let more = c.tolerance.map_or(0, |_| terms_for_copies(&pyramid, self.theta));
        if more > 0 {
            placed.report.warnings.push(format!("most points stand at places of others: {more} terms more"));
        }
        let order = c.order.unwrap_or(most - more) + more;
        if let Some(tolerance) = c.tolerance.filter(|_| order > most) {
            let (name, outputs) = (self.kernel.name(), self.request.outputs);
            return Err(tuning::too_many_terms(name, outputs, tolerance, self.theta, order));
        }
        let series = Laurent::new(self.kernel, order, self.gradient)?;
        // The largest relative error is that of a target where near terms cancel: it asks for a digit more.
        let cancelling = if self.request.norm == Norm::Max { 10.0 } else { 1.0 };
        let rough = c.tolerance.is_some_and(|t| t >= cancelling * tuning::ROUGH_NEAR_FIELD);
        self.plan = Some(LaurentPlan::new(pyramid, lists, series, c.isa, rough)?.shortened(self.theta));
        Ok(placed)
    }

    fn run(&self, strengths: &[&[f64]], rows: &mut [&mut [f64]], watch: Watch) -> Result<Seconds, Error> {
        one_by_one(strengths, rows, |strengths, rows| self.one(strengths, rows, watch))
    }

    fn order(&self) -> Option<usize> {
        self.plan.as_ref().map(|plan| plan.order())
    }

    fn points(&self) -> (Vec<f64>, Vec<f64>) {
        let Some(pyramid) = self.plan.as_ref().map(|p| p.pyramid()) else { return Default::default() };
        let targets = if pyramid.same_points() { Vec::new() } else { user_order(&pyramid.targets) };
        (user_order(&pyramid.sources), targets)
    }

    fn mesh(&self) -> Mesh {
        let Some(plan) = &self.plan else { return Mesh::default() };
        let (pyramid, lists) = (plan.pyramid(), plan.lists());
        let pairs = |(t, s): (u32, u32)| {
            pyramid.targets_of(t as usize).len() as u64 * pyramid.sources_of(s as usize).len() as u64
        };
        Mesh {
            levels: pyramid.levels(),
            boxes: pyramid.len(),
            leaves: pyramid.level(pyramid.depth()).len(),
            root_side: 2.0 * pyramid.radius[0],
            edges: Edges::of(lists),
            near_pairs: lists.p2p.iter().map(pairs).sum(),
        }
    }

    fn near_field(&self) -> Box<dyn Iterator<Item = NearBlock<'_>> + '_> {
        let Some(plan) = &self.plan else { return Box::new(std::iter::empty()) };
        let pyramid = plan.pyramid();
        Box::new(plan.lists().p2p.iter().map(|(t, s)| NearBlock {
            targets: Cow::Borrowed(&pyramid.targets.order[pyramid.targets_of(t as usize)]),
            sources: Cow::Borrowed(&pyramid.sources.order[pyramid.sources_of(s as usize)]),
        }))
    }

    fn bytes(&self) -> u64 {
        let workspaces = self.workspaces.bytes(LaurentWorkspace::bytes);
        self.plan.as_ref().map_or(0, |p| p.bytes()) + workspaces
    }
}

/// Points of the pyramid as the caller gave them.
fn user_order(points: &PlanePoints) -> Vec<f64> {
    let mut out = vec![0.0; 2 * points.len()];
    for (k, &i) in points.order.iter().enumerate() {
        out[2 * i as usize] = points.x[k];
        out[2 * i as usize + 1] = points.y[k];
    }
    out
}
