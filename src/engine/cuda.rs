//! Octree or pair by pair on an NVIDIA GPU.

use super::octree::{blocks, rows_of_sources};
use super::{Engine, Mesh, Placed, Placement, Seconds, Watch, build_options, one_by_one, order_of_densities, picked};
use crate::choose::Choice;
use crate::describe::{Edges, PlanSeconds};
use crate::near::NearBlock;
use crate::request::{Fmm, Targets};
use crate::tuning;
use crate::variant::{Expansion, Parts};
use backend_cpu::Precision;
use backend_cuda::{Settings, Solver, SphericalSettings, Sum};
use fmm_traits::{Error, Lists, Stage, Tree};
use std::sync::OnceLock;
use std::time::Instant;

/// The fast method on the device, or the direct sum.
pub(crate) struct Cuda {
    request: Fmm,
    choice: Choice,
    parts: Parts,
    /// None before the first points.
    points: Option<Points>,
}

/// What the device holds, and the points in the caller's order.
struct Points {
    held: Held,
    sources: Vec<f64>,
    /// Points of their own.
    targets: Option<Vec<f64>>,
}

enum Held {
    /// `pick`: the sources that are shown, when an evaluation at all sources serves a subset. The copy of tree and
    /// lists is made when somebody asks for the near field.
    Fast { solver: Box<dyn Solver>, order: usize, pick: Option<Vec<usize>>, copy: OnceLock<Box<(Tree, Lists)>> },
    /// `chosen`: the sources that are targets; `None` for all.
    Direct { sum: Box<dyn Sum>, chosen: Option<Vec<usize>> },
}

impl Cuda {
    pub(super) fn new(request: &Fmm, choice: &Choice, parts: Parts) -> Self {
        Cuda { request: request.clone(), choice: choice.clone(), parts, points: None }
    }

    /// The fast method at new points: with the solver there is, or a new one.
    fn fast(&mut self, sources: &[f64], targets: Targets<'_>) -> Result<Placed, Error> {
        let (c, r) = (&self.choice, &self.request);
        let placement = Placement::of(&c.facts, sources, targets);
        let tree = build_options(r, c, &self.parts);
        let own = placement.points();
        let device = r.backend.device(r.cache.as_ref())?;
        let points = backend_cuda::Placed::new(&device, &tree, sources, own)?;
        let usual = c.order.unwrap_or(tuning::MAX_ORDER);
        let order = match self.parts.expansion {
            Expansion::Equivalent => {
                let all = matches!(targets, Targets::Sources);
                order_of_densities((r, c, &self.parts), sources.len() / 3, all, usual, || points.closeness())?
            }
            Expansion::Spherical => usual,
        };
        let (report, seconds) = match &mut self.points {
            Some(Points { held: Held::Fast { solver, order: there, pick, copy }, sources: old, targets: others })
                if *there >= order =>
            {
                solver.set_points(points)?;
                (*old, *others) = (sources.to_vec(), own_points(targets));
                let said = (solver.report().clone(), solver.seconds());
                (*pick, *copy) = (placement.into_pick(), OnceLock::new());
                said
            }
            _ => {
                let lists = tuning::list_options(order, &self.parts);
                let expansion = match self.parts.expansion {
                    Expansion::Spherical => backend_cuda::Expansion::Spherical(SphericalSettings {
                        truncation: self.parts.spherical.truncation,
                        translation: Some(self.parts.translation_on_gpu(order, r.precision == Precision::F32)),
                    }),
                    Expansion::Equivalent => backend_cuda::Expansion::Equivalent,
                };
                let policy = match self.parts.policy.theta() {
                    Some(theta) => backend_cuda::Policy::Treecode { theta },
                    None => backend_cuda::Policy::Uvwx,
                };
                let beside = r.stages_apart.then_some(false);
                let settings = Settings { expansion, policy, order, lists, beside, cache: r.cache.clone() };
                let space = r.family.in_space()?;
                let solver = space.device_solver(r.outputs, &settings, r.precision, points)?;
                let said = (solver.report().clone(), solver.seconds());
                let held = Held::Fast { solver, order, pick: placement.into_pick(), copy: OnceLock::new() };
                self.points = Some(Points { held, sources: sources.to_vec(), targets: own_points(targets) });
                said
            }
        };
        let backend_cuda::PlanSeconds { tree: built, lists, operators } = seconds;
        let mut placed = Placed { report, seconds: PlanSeconds { tree: built, lists, operators, plan: 0.0 } };
        placed.say_softening(tree.min_side);
        let densities = c.facts.dipolar && self.parts.expansion == Expansion::Equivalent;
        if densities && r.precision == Precision::F32 && matches!(targets, Targets::Points(_)) {
            placed.report.warnings.push(
                "densities that stand for dipoles or stresslets cancel far away, here in f32: verify targets apart from them"
                    .into(),
            );
        }
        Ok(placed)
    }

    fn direct(&mut self, sources: &[f64], targets: Targets<'_>) -> Result<(), Error> {
        let chosen = if let Targets::Subset(s) = targets { Some(s.to_vec()) } else { None };
        let sum = self.sum(sources, targets)?;
        let held = Held::Direct { sum, chosen };
        self.points = Some(Points { held, sources: sources.to_vec(), targets: own_points(targets) });
        Ok(())
    }

    /// A direct sum that waits for strengths.
    fn sum(&self, sources: &[f64], targets: Targets<'_>) -> Result<Box<dyn Sum>, Error> {
        let r = &self.request;
        let at = match targets {
            Targets::Points(t) => backend_cuda::Targets::Points(t),
            Targets::Sources => backend_cuda::Targets::Sources(None),
            Targets::Subset(s) => backend_cuda::Targets::Sources(Some(s)),
        };
        let device = r.backend.device(r.cache.as_ref())?;
        r.family.in_space()?.device_sum(&device, r.outputs, sources, at)
    }

    /// The sums of one set of strengths.
    fn one(&self, strengths: &[f64], rows: &mut [f64], watch: Watch) -> Result<Seconds, Error> {
        let (facts, mut seconds) = (&self.choice.facts, Seconds::default());
        let n_sources = strengths.len() / facts.strengths;
        match self.points.as_ref().map(|p| &p.held) {
            Some(Held::Fast { solver, pick, .. }) => {
                let mut observer = |stage: Stage, done: f64| watch(stage.name(), done).is_ok();
                picked(pick.as_deref(), n_sources, facts.values, &mut [rows], |rows| {
                    solver.apply(strengths, rows[0], &mut observer)
                })
            }
            Some(Held::Direct { sum, .. }) => {
                watch(Stage::P2p.name(), 0.0)?;
                let start = Instant::now();
                sum.apply(strengths, rows)?;
                seconds[Stage::P2p as usize] = start.elapsed().as_secs_f64();
                Ok(seconds)
            }
            None => Ok(seconds),
        }
    }
}

/// A copy of targets that are points of their own.
fn own_points(targets: Targets<'_>) -> Option<Vec<f64>> {
    if let Targets::Points(t) = targets { Some(t.to_vec()) } else { None }
}

impl Points {
    /// Numbers of sources and targets of a direct sum.
    fn shape(&self, chosen: Option<&Vec<usize>>) -> [usize; 2] {
        let n = self.sources.len() / 3;
        [n, chosen.map_or(self.targets.as_ref().map_or(n, |t| t.len() / 3), Vec::len)]
    }
}

impl Engine for Cuda {
    fn asked(&self) -> (&Fmm, &Choice) {
        (&self.request, &self.choice)
    }

    fn free_memory(&self) -> Result<Option<u64>, Error> {
        let r = &self.request;
        r.backend.device(r.cache.as_ref())?.free_memory().map(Some)
    }

    fn reference(&self, sources: &[f64], strengths: &[f64], targets: Targets<'_>) -> Result<Vec<f64>, Error> {
        let facts = &self.choice.facts;
        let mut rows = vec![0.0; targets.count(sources.len() / facts.dim, facts.dim) * facts.values];
        self.sum(sources, targets)?.apply(strengths, &mut rows)?;
        Ok(rows)
    }

    fn place(&mut self, sources: &[f64], targets: Targets<'_>, watch: Watch) -> Result<Placed, Error> {
        watch("tree", 0.0)?;
        match self.choice.order {
            Some(_) => self.fast(sources, targets),
            None => self.direct(sources, targets).map(|()| Placed::default()),
        }
    }

    fn run(&self, strengths: &[&[f64]], rows: &mut [&mut [f64]], watch: Watch) -> Result<Seconds, Error> {
        one_by_one(strengths, rows, |strengths, rows| self.one(strengths, rows, watch))
    }

    fn order(&self) -> Option<usize> {
        match self.points.as_ref().map(|p| &p.held) {
            Some(Held::Fast { order, .. }) => Some(*order),
            _ => None,
        }
    }

    fn points(&self) -> (Vec<f64>, Vec<f64>) {
        let Some(points) = &self.points else { return Default::default() };
        (points.sources.clone(), points.targets.clone().unwrap_or_default())
    }

    fn mesh(&self) -> Mesh {
        let Some(points) = &self.points else { return Mesh::default() };
        match &points.held {
            Held::Fast { solver, .. } => {
                let c = solver.counts();
                let [p2m, m2m, m2l, p2l, l2l, l2p, m2p, p2p] = c.edges;
                let edges = Edges { p2m, m2m, m2l, p2l, l2l, l2p, m2p, p2p };
                let (levels, boxes, leaves) = (c.levels, c.boxes, c.leaves);
                Mesh { levels, boxes, leaves, root_side: c.root_side, edges, near_pairs: c.near_pairs }
            }
            Held::Direct { chosen, .. } => {
                let [n, m] = points.shape(chosen.as_ref());
                Mesh { near_pairs: n as u64 * m as u64, ..Mesh::default() }
            }
        }
    }

    /// Empty if the lists could not be copied from the device.
    fn near_field(&self) -> Box<dyn Iterator<Item = NearBlock<'_>> + '_> {
        let Some(points) = &self.points else { return Box::new(std::iter::empty()) };
        match &points.held {
            Held::Fast { solver, pick, copy, .. } => {
                if copy.get().is_none()
                    && let Ok(there) = solver.download()
                {
                    let _ = copy.set(Box::new(there));
                }
                match copy.get().map(|copy| &**copy) {
                    Some((tree, lists)) => blocks(tree, lists, rows_of_sources(pick.as_deref(), tree.sources.len())),
                    None => Box::new(std::iter::empty()),
                }
            }
            Held::Direct { chosen, .. } => {
                let [n, m] = points.shape(chosen.as_ref());
                Box::new(std::iter::once(NearBlock::whole(m, n)))
            }
        }
    }

    fn bytes(&self) -> u64 {
        match self.points.as_ref().map(|p| &p.held) {
            Some(Held::Fast { solver, .. }) => solver.bytes(),
            Some(Held::Direct { sum, .. }) => sum.bytes(),
            None => 0,
        }
    }
}
