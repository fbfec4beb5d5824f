//! The description of a plan, as plain data.

use crate::candidates::Layout;
use crate::engine::RanksReport;
use crate::mesh::{Edges, PlanSeconds};
use crate::plan::Plan;
use crate::probe::ProbeReport;
use crate::request::Method;
use crate::variant::Expansion;
use crate::work::{self, Work};
use adaptive2d::Norm;
use serde::Serialize;

/// The choices of a plan, their reasons, and counts of boxes and edges.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Description {
    /// Name of the family.
    pub kernel: String,
    /// Parameters of the family.
    pub parameters: Vec<f64>,
    /// The rows of L, if the plan works in coordinates L·x, in which the kernel is radial.
    pub coordinates: Option<[[f64; 3]; 3]>,
    /// Requested outputs.
    pub outputs: Vec<&'static str>,
    /// `equivalent`, `interpolation`, `spherical`, `treecode`, `laurent` or `direct`.
    pub method: &'static str,
    /// Expansion of the far field: `equivalent`, `interpolation`, `spherical` or `laurent`. `expansion`, `lists`, `theta`,
    /// `translation` and `truncation` are `None` for direct summation.
    pub expansion: Option<&'static str>,
    /// `uvwx`, `stencil119`, `treecode`, or for Laurent series `separation`.
    pub lists: Option<&'static str>,
    /// Opening angle of a treecode; for Laurent series the θ of the criterion of separation.
    pub theta: Option<f64>,
    /// Translation of spherical harmonics: `rcr`, `direct` or `domains`; on a GPU `rcr` or `dense`.
    pub translation: Option<&'static str>,
    /// Truncation of spherical harmonics: `variable`, `bound` or `fixed`.
    pub truncation: Option<&'static str>,
    /// Values of each attribute of the sources in far fields ([`Fmm::nodes`](crate::Fmm::nodes)); `None` if the sources
    /// have no attributes of which one value is not enough, and for methods that have one value.
    pub nodes: Option<usize>,
    /// Reason for the method.
    pub why: String,
    /// The cost model that selected the method and the leaf size: `built-in`, or the machine where it was measured.
    pub cost_model: String,
    /// `cpu` or `cuda`.
    pub backend: &'static str,
    /// Instruction set of the CPU.
    pub isa: &'static str,
    /// Name of the GPU; `None` on a CPU.
    pub device: Option<String>,
    /// Precision of the sum.
    pub precision: &'static str,
    /// Number of sources.
    pub n_sources: usize,
    /// Number of targets.
    pub n_targets: usize,
    /// Promised tolerance; `None` if the caller gave an order.
    pub tolerance: Option<f64>,
    /// The error that the tolerance bounds: `l2` or `max`.
    pub norm: &'static str,
    /// Order of the expansion; `None` for direct summation.
    pub order: Option<usize>,
    /// Leaf capacity. The numbers of levels, boxes, leaves and edges and this one are 0 without a tree.
    pub ncrit: usize,
    /// Levels of the tree.
    pub levels: usize,
    /// Boxes of the tree.
    pub boxes: usize,
    /// Leaves of the tree.
    pub leaves: usize,
    /// Side of the root cube.
    pub root_side: f64,
    /// Edges of the lists.
    pub edges: Edges,
    /// Floating-point operations of M2L, without transforms and padding.
    pub m2l_operations: f64,
    /// Bytes of the expansions that M2L reads and writes, each expansion counted once.
    pub m2l_bytes: f64,
    /// Pairs of points that are summed directly.
    pub near_pairs: u64,
    /// Positions held by more than one point.
    pub coincident_groups: usize,
    /// Threads of the plan's pool.
    pub threads: usize,
    /// Pieces in which an evaluation takes the targets, one after the other. On a GPU whose memory does not hold the sums
    /// of all targets beside the rest of the plan there are several.
    pub pieces: usize,
    /// Bytes held by the plan.
    pub bytes: u64,
    /// Seconds spent on planning.
    pub seconds: PlanSeconds,
    /// Measurements that chose the order; `None` if the caller gave an order, or if the sum is exact.
    pub probe: Option<ProbeReport>,
    /// The part of this rank, if several ranks sum together. Counts of points, boxes and edges are then those of this
    /// rank.
    pub ranks: Option<RanksReport>,
    /// The parts of several GPUs, if this process sums on several. Counts of boxes and edges are then sums over the GPUs,
    /// ghosts included.
    pub devices: Vec<RanksReport>,
    /// Warnings about the points, as sentences.
    pub warnings: Vec<String>,
}

impl Plan {
    /// The choices of the plan and their reasons.
    pub fn describe(&self) -> Description {
        let (c, r) = (&self.choice, &self.request);
        let fast = (c.method != Method::Direct).then_some(c.layout);
        let parts = fast.and_then(|l| if let Layout::Octree(parts) = l { Some(parts) } else { None });
        let spherical = parts.filter(|p| p.expansion == Expansion::Spherical);
        let mesh = self.engine.as_ref().map(|e| e.mesh()).unwrap_or_default();
        let order = c.order;
        let processor = r.backend.processor();
        let translation = spherical.map(|p| processor.translation(&p, order.unwrap_or_default(), r.precision));
        let rotations = translation.is_some_and(|(_, rotates)| rotates);
        let wide = r.precision.bytes();
        let fill = parts.and_then(|p| p.expansion.fill());
        let components = fill.map_or([1; 2], |fill| c.facts.densities_and_checks(fill));
        // Each far field has expansions of all boxes.
        let fields = parts.map_or(1, |parts| parts.fields());
        let sizes = [components, [mesh.boxes, mesh.edges.m2l].map(|count| fields * count)];
        let work = parts.zip(order).map(|(l, p)| work::m2l(l.expansion, rotations, p, sizes[0], sizes[1], wide));
        let Work { operations: m2l_operations, bytes: m2l_bytes } = work.unwrap_or_default();
        Description {
            kernel: r.family.name().to_string(),
            parameters: r.family.parameters(),
            coordinates: c.facts.map.map(|map| map.rows),
            outputs: r.outputs.names(),
            method: c.method.name(),
            expansion: fast.map(|_| parts.map_or("laurent", |p| p.expansion.name())),
            lists: fast.map(|_| parts.map_or("separation", |p| p.policy.name())),
            theta: fast.and_then(|_| c.theta()),
            translation: translation.map(|(name, _)| name),
            truncation: spherical.map(|p| p.truncation.name()),
            nodes: parts.filter(|p| p.grid.spreads > 0).map(|p| p.grid.nodes),
            why: c.why.clone(),
            cost_model: c.costs.clone(),
            backend: r.backend.name(),
            isa: c.isa.name(),
            device: r.backend.device(r),
            precision: match fast {
                Some(_) => r.precision.name(),
                None => processor.direct_precision(r.precision).name(),
            },
            n_sources: self.n_sources,
            n_targets: self.n_targets,
            tolerance: c.tolerance,
            norm: if r.norm == Norm::Max { "max" } else { "l2" },
            order,
            ncrit: self.report.ncrit,
            levels: mesh.levels,
            boxes: mesh.boxes,
            leaves: mesh.leaves,
            root_side: mesh.root_side,
            edges: mesh.edges,
            m2l_operations,
            m2l_bytes,
            near_pairs: mesh.near_pairs,
            coincident_groups: self.report.coincident_groups,
            threads: c.threads,
            pieces: self.engine.as_ref().map_or(1, |e| e.pieces()),
            bytes: self.memory(),
            seconds: self.seconds,
            probe: self.probe.clone(),
            ranks: self.engine.as_ref().and_then(|e| e.on_ranks()),
            devices: self.engine.as_ref().map(|e| e.on_devices()).unwrap_or_default(),
            warnings: self.report.warnings.clone(),
        }
    }
}
