//! The settings of a plan, and the edge lists that they ask for.

use crate::lists::{Acceptance, DeviceLists, Scope, stencil119_of, treecode_of, uvwx_of};
use crate::spherical::SphericalSettings;
use crate::tree::DeviceTree;
use fmm_kernels::equivalent::Fill;
use fmm_kernels::{equivalent, spherical};
use fmm_traits::{Error, Policy};
use fmm_tree::{ListOptions, TreecodeOptions};
use std::path::PathBuf;

/// The expansion of the far field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expansion {
    /// Equivalent densities, of any kernel, on surfaces or in volumes.
    Equivalent(Fill),
    /// Spherical harmonics, of charges 1/r and dipoles.
    Spherical(SphericalSettings),
}

/// Settings of a plan.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The expansion of the far field.
    pub expansion: Expansion,
    /// The list policy.
    pub policy: Policy,
    /// Order p of the lattices, or number of degrees of the harmonics.
    pub order: usize,
    /// Thresholds below which far edges are summed pair by pair.
    pub lists: ListOptions,
    /// Whether P2P runs beside the far field: [`Plan::set_beside`](crate::Plan::set_beside).
    pub beside: Option<bool>,
    /// Folder in which operators are kept between runs; `None`: in memory only.
    pub cache: Option<PathBuf>,
}

/// The settings that lists depend on: policy, thresholds, and of a treecode the radii of M2P.
pub(crate) type ListKey = (Policy, ListOptions, [f64; 2]);

impl Settings {
    /// The settings that the lists depend on.
    pub(crate) fn key(&self) -> ListKey {
        let treecode = matches!(self.policy, Policy::Treecode { .. });
        (self.policy, self.lists, if treecode { self.m2p_radii() } else { [0.0; 2] })
    }

    /// The sphere and the cube of [`Acceptance`], outside which a multipole is valid.
    fn m2p_radii(&self) -> [f64; 2] {
        match self.expansion {
            Expansion::Equivalent(_) => [0.0, equivalent::expansion::M2P_RADIUS],
            Expansion::Spherical(_) => [spherical::expansion::M2P_RADIUS, 0.0],
        }
    }

    /// The edge lists of the policy. Pairs nearer than `near` must be summed directly, so a treecode accepts no box
    /// that is nearer.
    pub(crate) fn lists_of(&self, tree: &DeviceTree, scope: &Scope, near: f64) -> Result<DeviceLists, Error> {
        let theta = match self.policy {
            Policy::Uvwx => return uvwx_of(tree, scope, &self.lists),
            Policy::Stencil119 => return stencil119_of(tree, scope, &self.lists),
            Policy::Treecode { theta } => theta,
        };
        let [sphere, cube] = self.m2p_radii();
        let options = TreecodeOptions { theta, m2p_min_sources: self.lists.m2p_min_sources };
        treecode_of(tree, scope, &options, Acceptance { sphere, cube, near })
    }
}
