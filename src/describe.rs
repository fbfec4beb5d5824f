//! What a plan chose and why, as plain data.

use crate::candidates::Layout;
use crate::mesh::{Edges, PlanSeconds};
use crate::plan::Plan;
use crate::probe::ProbeReport;
use crate::request::Method;
use crate::variant::Expansion;
use crate::work::{self, Work};
use adaptive2d::Norm;
use fmm_traits::Precision;
use serde::Serialize;

/// What a plan chose and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Description {
    /// Name of the family.
    pub kernel: String,
    /// Its parameters.
    pub parameters: Vec<f64>,
    /// Requested outputs.
    pub outputs: Vec<&'static str>,
    /// `equivalent`, `spherical`, `treecode`, `laurent` or `direct`.
    pub method: &'static str,
    /// `spherical`, `equivalent` or `laurent`; none when the sum is direct, and so below.
    pub expansion: Option<&'static str>,
    /// `uvwx`, `stencil119`, `treecode`, or in the plane `separation`.
    pub lists: Option<&'static str>,
    /// Opening angle of a treecode, θ of the criterion of separation in the plane.
    pub theta: Option<f64>,
    /// `rcr`, `direct` or `domains`, on a GPU `rcr` or `dense`, of spherical harmonics.
    pub translation: Option<&'static str>,
    /// `variable`, `bound` or `fixed`, of spherical harmonics.
    pub truncation: Option<&'static str>,
    /// Why this method.
    pub why: String,
    /// Which costs method and leaf size were chosen by: `built-in`, or where they were measured.
    pub cost_model: String,
    /// `cpu` or `cuda`.
    pub backend: &'static str,
    /// Instruction set of the CPU.
    pub isa: &'static str,
    /// Name of the GPU that computes; none on a CPU.
    pub device: Option<String>,
    /// Precision of the sum.
    pub precision: &'static str,
    /// Number of sources.
    pub n_sources: usize,
    /// Number of targets.
    pub n_targets: usize,
    /// Tolerance that is promised; none when an order was given.
    pub tolerance: Option<f64>,
    /// What the tolerance bounds: `l2` or `max`.
    pub norm: &'static str,
    /// Order of the expansion; none when the sum is direct.
    pub order: Option<usize>,
    /// Leaf capacity; 0 without a tree, and so below.
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
    /// Floating-point operations that M2L stands for, without transforms and padding.
    pub m2l_operations: f64,
    /// Bytes of the expansions that M2L reads and writes, each counted once.
    pub m2l_bytes: f64,
    /// Point pairs summed directly.
    pub near_pairs: u64,
    /// Positions held by more than one point.
    pub coincident_groups: usize,
    /// Threads of the plan's pool.
    pub threads: usize,
    /// Bytes held by the plan.
    pub bytes: u64,
    /// Seconds spent on planning.
    pub seconds: PlanSeconds,
    /// What was measured before the order was chosen; none if it was given, or if the sum is exact.
    pub probe: Option<ProbeReport>,
    /// What a careful user should know.
    pub warnings: Vec<String>,
}

impl Plan {
    /// What was chosen and why.
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
        let wide = if r.precision == Precision::F32 { 4 } else { 8 };
        let sizes = [[c.facts.densities, c.facts.checks], [mesh.boxes, mesh.edges.m2l]];
        let work = parts.zip(order).map(|(l, p)| work::m2l(l.expansion, rotations, p, sizes[0], sizes[1], wide));
        let Work { operations: m2l_operations, bytes: m2l_bytes } = work.unwrap_or_default();
        Description {
            kernel: r.family.name().to_string(),
            parameters: r.family.parameters(),
            outputs: r.outputs.names(),
            method: c.method.name(),
            expansion: fast.map(|_| parts.map_or("laurent", |p| p.expansion.name())),
            lists: fast.map(|_| parts.map_or("separation", |p| p.policy.name())),
            theta: fast.and_then(|_| c.theta()),
            translation: translation.map(|(name, _)| name),
            truncation: spherical.map(|p| p.spherical.truncation.name()),
            why: c.why.clone(),
            cost_model: c.costs.clone(),
            backend: r.backend.name(),
            isa: c.isa.name(),
            device: processor.device(r),
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
            bytes: self.memory(),
            seconds: self.seconds,
            probe: self.probe.clone(),
            warnings: self.report.warnings.clone(),
        }
    }
}
