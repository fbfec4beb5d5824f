//! The parts of a fast method on an octree: expansion, translations, lists.

use crate::request::Method;
use crate::variant::{Expansion, ListPolicy, Translation, Truncation, Variant};
use fmm_kernels::equivalent::Lattice;
use fmm_kernels::spherical::SphericalOptions;
use fmm_traits::{Error, Policy, Precision};

/// The expansion, translations and lists of a fast method on an octree.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Parts {
    /// Dimensions: 3, or 2 for a quadtree, which is an octree of points at z = 0.
    pub dim: usize,
    pub expansion: Expansion,
    /// How spherical harmonics are translated.
    pub translation: Translation,
    /// How many degrees of spherical harmonics far edges take.
    pub truncation: Truncation,
    pub policy: Policy,
    /// Whether the caller asked for rotations. A GPU otherwise uses rotations only where they are faster.
    pub rotations: bool,
    pub grid: Grid,
}

/// The values of attributes of sources in far fields.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Grid {
    /// Values of each attribute, at least 1.
    pub nodes: usize,
    /// Attributes for which one value is not enough.
    pub spreads: usize,
}

impl Grid {
    /// One value of each attribute.
    pub const ONE: Grid = Grid { nodes: 1, spreads: 0 };

    /// Number of far fields: one for each point of the grid.
    pub fn fields(&self) -> usize {
        self.nodes.pow(self.spreads as u32)
    }
}

impl Parts {
    /// The points of equivalent densities of an order; `None` for spherical harmonics.
    pub fn lattice(&self, order: usize) -> Option<Lattice> {
        self.expansion.lattice(order, self.dim)
    }
    /// The options of spherical harmonics for the lists of these parts.
    pub fn harmonics(&self) -> SphericalOptions {
        SphericalOptions { translation: self.translation, truncation: self.truncation, theta: self.policy.theta() }
    }
    /// Number of far fields.
    pub fn fields(&self) -> usize {
        self.grid.fields()
    }
    /// How a GPU translates spherical harmonics of `order`.
    pub fn translation_on_device(&self, order: usize, precision: Precision) -> backend_cuda::Translation {
        match precision {
            _ if self.translation == Translation::Domains => backend_cuda::Translation::Domains,
            _ if self.rotations => backend_cuda::Translation::Rcr,
            Precision::F32 => backend_cuda::Translation::fastest::<f32>(order),
            Precision::F64 => backend_cuda::Translation::fastest::<f64>(order),
        }
    }
}

/// The parts of `method` in `dim` dimensions with the options of `variant`. An option without a meaning for the method
/// is an error. `harmonic` is the reason why the kernel has no expansion in spherical harmonics, if it has none. θ is
/// the requested angle, or 0 if θ is still to be chosen.
pub(crate) fn parts(
    variant: &Variant,
    method: Method,
    dim: usize,
    harmonic: &Result<(), Error>,
) -> Result<Parts, Error> {
    let expansion = match (method, variant.expansion) {
        (Method::SphericalHarmonics, _) => Expansion::Spherical,
        (Method::Interpolation, _) => Expansion::Interpolation,
        (Method::Treecode, Some(expansion)) => expansion,
        (Method::Treecode, None) if harmonic.is_ok() => Expansion::Spherical,
        _ => Expansion::Equivalent,
    };
    let spherical = expansion == Expansion::Spherical;
    let tree = method == Method::Treecode;
    let refuse = |operation, reason: &str| {
        Err(Error::Unsupported { operation, reason: format!("{reason}; the method is {}", method.name()) })
    };
    if variant.theta.is_some() && !tree {
        return refuse("an opening angle θ", "on an octree or a quadtree only a treecode has one");
    }
    if variant.expansion.is_some() && !tree {
        return refuse("a choice of expansion", "only the method treecode has a choice");
    }
    if variant.lists.is_some() && method != Method::SphericalHarmonics && variant.lists != Some(ListPolicy::Uvwx) {
        return refuse("the 119 stencil", "its edges reach inside the surfaces of equivalent densities");
    }
    if variant.lists.is_some() && (tree || method == Method::Direct) {
        return refuse("a choice of lists", "it belongs to the fast multipole method");
    }
    if variant.translation.is_some() && !spherical {
        return refuse("a choice of translations", "it belongs to spherical harmonics");
    }
    if variant.translation == Some(Translation::Domains) && tree {
        return refuse("translations to domains", "a treecode has no M2L");
    }
    if variant.truncation.is_some() && !spherical {
        return refuse("a choice of truncation", "it belongs to spherical harmonics");
    }
    if variant.nodes.is_some() && (spherical || method == Method::Direct) {
        return refuse("a number of nodes", "it belongs to equivalent densities and interpolation");
    }
    if let (true, Err(e)) = (spherical, harmonic) {
        return Err(e.clone());
    }
    if let Some(theta) = variant.theta.filter(|t| !(*t > 0.0 && *t <= MAX_THETA)) {
        let requirement = "must be above 0 and at most 1.1: multipoles converge only below 2/√3";
        return Err(Error::Parameter { name: "theta", value: theta, requirement });
    }
    Ok(Parts {
        dim,
        expansion,
        translation: variant.translation.unwrap_or_default(),
        truncation: variant.truncation.unwrap_or_default(),
        policy: match (tree, variant.lists) {
            (true, _) => Policy::Treecode { theta: variant.theta.unwrap_or(0.0) },
            (false, Some(ListPolicy::Stencil119)) => Policy::Stencil119,
            (false, _) => Policy::Uvwx,
        },
        rotations: variant.translation == Some(Translation::Rcr),
        grid: Grid::ONE,
    })
}

/// Largest opening angle of a treecode.
const MAX_THETA: f64 = 1.1;
