//! The kernels of a family in space, and what sums them.

use crate::{Facts, in_space};
use backend_cpu::{Isa, OctreeSolver, Pairs, Settings};
use backend_cuda::{CallerPoints, Device, DeviceMethod, DeviceSums, DeviceTargets, Direct, Ground, StrengthSets};
use fmm_kernels::equivalent::Fill;
use fmm_kernels::spherical::{SphericalOptions, layout::layout};
use fmm_traits::{Error, Kernels, Lists, Member, Members, Precision, Targets, Tree};
use std::sync::Arc;

/// The expansion of a fast solver on the CPU.
#[derive(Clone, Copy, Debug)]
pub enum Expansion {
    /// Equivalent densities, on surfaces or in volumes.
    Equivalent(Fill),
    /// Spherical harmonics.
    Spherical(SphericalOptions),
}

/// The kernels of a family in space for a set of outputs, with their pair loops.
pub struct InSpace {
    /// The kernels, parameters and columns.
    pub kernels: Kernels,
    /// The loops over pairs on a CPU.
    pub pairs: Pairs,
}

impl InSpace {
    /// Puts kernels and loops together.
    pub(crate) fn new(kernels: Kernels, pairs: Pairs) -> Self {
        let pairs = pairs.skipping_self(!kernels.near.singular && !kernels.include_self);
        InSpace { kernels, pairs }
    }

    pub(crate) fn facts(self) -> Facts {
        let (harmonic, interpreted) = (layout(&self.kernels).map(drop), self.pairs.interpreted());
        let Kernels { near, far, members, params, columns, include_self, .. } = self.kernels;
        let Members { check, equivalent, slope, .. } = members;
        Facts {
            dim: near.dim,
            strengths: near.strengths,
            attributes: near.attributes.len(),
            values: near.values,
            columns,
            skips_self: !near.singular && !include_self,
            reciprocal: near.reciprocal,
            harmonic,
            densities: equivalent.strengths,
            checks: equivalent.values,
            in_volume: [equivalent.strengths, equivalent.values],
            homogeneous: equivalent.dilated(&params, 2.0).is_none(),
            tapes: Arc::new([&near, &check, &far].map(Member::tape)),
            interpreted,
            members: vec![equivalent, check, near, far, slope],
            params,
            map: None,
        }
    }

    /// The direct sums of each set of strengths, as arrays of targets × values. Points have as many coordinates as the
    /// kernel takes.
    ///
    /// # Errors
    /// Errors of [`backend_cpu::direct_batch`].
    pub fn direct(
        &self,
        sources: &[f64],
        strengths: &[&[f64]],
        targets: Targets<'_>,
        precision: Precision,
        isa: Isa,
    ) -> Result<Vec<Vec<f64>>, Error> {
        let dim = self.kernels.near.dim;
        let points = if let Targets::Points(points) = targets { Some(in_space(dim, points)) } else { None };
        let (sources, targets) = (in_space(dim, sources), points.as_deref().map_or(targets, Targets::Points));
        backend_cpu::direct_batch(&self.kernels, &self.pairs, &sources, strengths, targets, precision, isa)
    }

    /// A solver on the CPU.
    ///
    /// # Errors
    /// Errors of [`backend_cpu::plan`] and [`backend_cpu::spherical::plan`].
    pub fn solver(
        self,
        tree: Tree,
        lists: Lists,
        settings: &Settings,
        expansion: Expansion,
    ) -> Result<Box<dyn OctreeSolver>, Error> {
        let InSpace { kernels, pairs } = self;
        match expansion {
            Expansion::Spherical(options) => {
                backend_cpu::spherical::plan(kernels, &pairs, tree, lists, settings, options)
            }
            Expansion::Equivalent(fill) => backend_cpu::plan(kernels, &pairs, tree, lists, settings, fill),
        }
    }

    /// A fast method on a GPU, ready for points.
    ///
    /// # Errors
    /// Errors of [`backend_cuda::method`].
    pub fn device_method(
        &self,
        settings: &backend_cuda::Settings,
        precision: Precision,
        ground: &Ground,
    ) -> Result<Box<dyn DeviceMethod>, Error> {
        backend_cuda::method(&self.kernels, settings, precision, ground)
    }

    /// A direct sum on a GPU, in f64. In f32, with coordinates in one piece, pairs of points that lie close together
    /// would not keep a tolerance.
    ///
    /// # Errors
    /// Errors of [`backend_cuda::Direct::of`].
    pub fn device_sum(
        &self,
        device: &Device,
        sources: Arc<CallerPoints>,
        targets: DeviceTargets,
    ) -> Result<Box<dyn DeviceSums>, Error> {
        Ok(Direct::<f64>::of(device, &self.kernels, sources, targets, None)?.solver())
    }

    /// Loads the program of [`device_sum`](InSpace::device_sum) ahead of its use.
    ///
    /// # Errors
    /// Errors of the device and of the compiler.
    pub fn load_device_sum(&self, device: &Device) -> Result<(), Error> {
        Direct::<f64>::load(device, &self.kernels)
    }

    /// Direct sums on a GPU, in f64, at separate points: the rows of each set of strengths.
    ///
    /// # Errors
    /// [`Error::Shape`], and errors of the device.
    pub fn device_sums_at(
        &self,
        device: &Device,
        (sources, targets): (CallerPoints, CallerPoints),
        strengths: &StrengthSets,
    ) -> Result<Vec<Vec<f64>>, Error> {
        let targets = DeviceTargets::Points(Arc::new(targets));
        Direct::<f64>::of(device, &self.kernels, Arc::new(sources), targets, None)?.sums(strengths)
    }
}
