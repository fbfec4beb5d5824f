//! New points of a plan in a tree on a device. Candidates of a plan that want the same tree share it.

use crate::mesh::{Edges, Mesh};
use crate::probe::Trial;
use backend_cuda::{CallerPoints, Counts, JointPoints, Placed};
use fmm_traits::{Error, Policy};
use fmm_tree::{BuildOptions, BuildReport};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Largest number of trees that a plan keeps while its candidates are tried.
pub(crate) const TREES_KEPT: usize = 2;

/// New points in their tree, and what a probe has taken from the tree.
pub(crate) struct Site {
    options: BuildOptions,
    pub placed: Placed,
    /// The samples on which errors are measured, by list policy, each with the edges between points and expansions in
    /// the lists from which it was drawn.
    trials: Vec<(Policy, usize, Arc<Trial>)>,
    /// [`Mesh::corners`], which no list changes.
    pub corners: OnceLock<f64>,
}

impl Site {
    fn new(
        device: &backend_cuda::Device,
        options: &BuildOptions,
        sources: &CallerPoints,
        targets: Option<&CallerPoints>,
    ) -> Result<Site, Error> {
        Ok(Site::of(options, Placed::new(device, options, sources, targets)?))
    }

    /// Points of all ranks: [`Placed::joint`].
    pub fn joint(
        device: &backend_cuda::Device,
        options: &BuildOptions,
        sources: &JointPoints,
        targets: Option<&JointPoints>,
    ) -> Result<Option<Site>, Error> {
        Ok(Placed::joint(device, options, sources, targets)?.map(|placed| Site::of(options, placed)))
    }

    fn of(options: &BuildOptions, placed: Placed) -> Site {
        Site { options: *options, placed, trials: Vec::new(), corners: OnceLock::new() }
    }

    /// The sample for the lists of a policy, which have so many edges between points and expansions, if there is one.
    pub fn trial(&mut self, policy: Policy, edges: usize) -> Option<Arc<Trial>> {
        self.trials.retain(|(of, drawn, _)| *of != policy || *drawn == edges);
        self.trials.iter().find(|(of, ..)| *of == policy).map(|(.., trial)| trial.clone())
    }

    /// Keeps a sample for [`trial`](Self::trial).
    pub fn keep(&mut self, policy: Policy, edges: usize, trial: Trial) -> Arc<Trial> {
        let trial = Arc::new(trial);
        self.trials.push((policy, edges, trial.clone()));
        trial
    }
}

/// A tree that several candidates may hold.
pub(crate) type Shared = Arc<Mutex<Site>>;

/// Locks a shared tree. A poisoned lock is fine: a site is changed by whole values only.
pub(crate) fn locked(site: &Shared) -> MutexGuard<'_, Site> {
    site.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The tree for its last holder; `None` if another one holds it too.
pub(crate) fn into_placed(site: Shared) -> Option<Placed> {
    let site = Arc::try_unwrap(site).ok()?.into_inner().unwrap_or_else(PoisonError::into_inner);
    Some(site.placed)
}

/// The trees that candidates have built for the points of a plan, the latest last.
#[derive(Default)]
pub(crate) struct Trees(Mutex<Vec<Shared>>);

impl Trees {
    /// The tree of some options. Builds the tree unless it is here.
    pub fn tree(
        &self,
        device: &backend_cuda::Device,
        options: &BuildOptions,
        sources: &CallerPoints,
        targets: Option<&CallerPoints>,
    ) -> Result<Shared, Error> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let site = match kept.iter().position(|site| locked(site).options == *options) {
            Some(at) => kept.remove(at),
            None => {
                let made = match Site::new(device, options, sources, targets) {
                    Err(Error::Memory { .. }) if !kept.is_empty() => {
                        kept.clear();
                        Site::new(device, options, sources, targets)
                    }
                    made => made,
                };
                Arc::new(Mutex::new(made?))
            }
        };
        kept.push(site.clone());
        if kept.len() > TREES_KEPT {
            kept.remove(0);
        }
        Ok(site)
    }
}

/// Counts of a tree and its lists on the device, without the mean over the targets. The count of points in M2P and P2L
/// assumes one mean leaf per edge.
pub(super) fn mesh_of(c: &Counts, report: &BuildReport) -> Mesh {
    let [p2m, m2m, m2l, p2l, l2l, l2p, m2p, p2p] = c.edges;
    let edges = Edges { p2m, m2m, m2l, p2l, l2l, l2p, m2p, p2p };
    let far_points = edges.far_points(report.mean_leaf);
    let (levels, boxes, leaves, near_pairs) = (c.levels, c.boxes, c.leaves, c.near_pairs);
    Mesh { levels, boxes, leaves, root_side: c.root_side, edges, near_pairs, far_points, corners: 0.0 }
}
