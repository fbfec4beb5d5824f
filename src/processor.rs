//! Processors: the methods, prices and engines of one kind of machine.
//!
//! The planning code asks a [`Processor`] and never which processor it is. A further backend is a further
//! implementation of this trait, and one arm of `Backend::processor`.

use crate::backend::{Cpu, Cuda, Hybrid};
use crate::choice::Choice;
use crate::costs::{HybridPrices, PlaneCosts, Prices, UnitCosts};
use crate::engine::{self, Engine, OnARank};
use crate::memory::{self, Forecast, Size};
use crate::mesh::Mesh;
use crate::parts::Parts;
use crate::request::{Fmm, Method};
use crate::variant::{Translation, Truncation, Variant};
use backend_cpu::Isa;
use backend_cpu::laurent::PlanePairs;
use backend_cuda::{Device, NearOnDevice, Routes};
use fmm_dist::{Ready, World};
use fmm_families::{Facts, Place, only_f64};
use fmm_traits::{Error, Lists, NearFields, Precision, Solver, Tree, cores};
use std::sync::Arc;

/// A kind of machine that computes sums in space.
pub(crate) trait Processor {
    /// The name on the command line and in reports.
    fn name(&self) -> &'static str;
    /// The unit of hardware for which times are forecast, in words.
    fn unit(&self) -> &'static str;
    /// The requested instruction set for work on CPU cores.
    fn isa(&self) -> Option<Isa> {
        None
    }
    /// Name of the device; `None` on a CPU, or if the device does not answer.
    fn device(&self, _request: &Fmm) -> Option<String> {
        None
    }
    /// Number of the device in whose memory the points are; `None` on a CPU.
    fn number(&self) -> Option<usize> {
        None
    }
    /// Number of the device that takes part; `None` on a CPU.
    fn gpu(&self) -> Option<usize> {
        self.number()
    }
    /// The device that reads the points; `None` if cores read them.
    fn opened(&self, _request: &Fmm) -> Option<Result<Device, Error>> {
        None
    }
    /// Opens the device, and loads the programs that every plan of a request needs.
    ///
    /// # Errors
    /// [`Error::NoDevice`], and errors of the device and of its compiler.
    fn load(&self, _request: &Fmm) -> Result<(), Error> {
        Ok(())
    }
    /// Prepares this processor for a plan whose choice is forecast to be this one, and which needs so many bytes here.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    fn expect(&self, _request: &Fmm, _choice: &Choice, _bytes: u64) -> Result<(), Error> {
        Ok(())
    }
    /// Completes the parts of a method with the defaults of the processor.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a part that the processor does not have.
    fn complete(&self, parts: Parts, variant: &Variant) -> Result<Parts, Error>;
    /// Checks that the processor has the methods of the plane in a precision.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    fn has_plane(&self, precision: Precision) -> Result<(), Error>;
    /// The prices of sums in the plane.
    fn prices_of_plane(&self) -> PlaneCosts;
    /// The precision of direct sums if the caller asks for `asked`.
    fn direct_precision(&self, asked: Precision) -> Precision;
    /// Name of the translations of spherical harmonics, and whether these translations rotate the axes.
    fn translation(&self, parts: &Parts, order: usize, precision: Precision) -> (&'static str, bool);
    /// The prices of sums.
    fn prices<'a>(&self, request: &'a Fmm, facts: &'a Facts) -> Box<dyn Prices + 'a>;
    /// The points of M2P and P2L edges that a price counts. `mean_leaf` is the mean number of points in a leaf.
    fn far_points(&self, mesh: &Mesh, _mean_leaf: f64) -> u64 {
        mesh.far_points
    }
    /// Bytes of a plan and one evaluation on `threads` threads.
    fn memory(&self, facts: &Facts, size: &Size, threads: usize, parts: &Parts) -> Forecast;
    /// The processor that sums near fields while this one translates; `None` if this one sums them itself.
    ///
    /// # Errors
    /// What that processor reports.
    fn near_fields(&self, _request: &Fmm) -> Result<Option<Arc<dyn NearFields>>, Error> {
        Ok(None)
    }
    /// A new engine for a choice, without points.
    fn engine(&self, request: &Fmm, choice: &Choice, parts: Parts) -> Box<dyn Engine>;
    /// A new engine for a choice in the plane, without points.
    fn engine_of_plane(&self, request: &Fmm, choice: &Choice, pairs: PlanePairs, theta: f64) -> Box<dyn Engine>;
    /// A new engine of a rank that holds the tree of all ranks, without points; `None` if the host makes trees of ranks.
    fn engine_of_share(&self, _: &Fmm, _: &Choice, _: Parts, _: &World) -> Option<Box<dyn Engine>> {
        None
    }
    /// The sums of an order on a small problem that was cut out of a tree on the host.
    ///
    /// # Errors
    /// Those of the solver.
    fn on_a_sample(
        &self,
        request: &Fmm,
        choice: &Choice,
        parts: &Parts,
        order: usize,
        boxes: (Tree, Lists),
    ) -> Result<Box<dyn Solver>, Error>;
    /// The sums of an order on the tree of a rank and its lists. Strengths and values are those of the caller on this
    /// rank; all ranks evaluate together.
    ///
    /// # Errors
    /// Those of the solver.
    fn on_a_rank(
        &self,
        request: &Fmm,
        choice: &Choice,
        parts: &Parts,
        order: usize,
        boxes: (Ready, Lists),
    ) -> Result<OnARank, Error>;
}

impl Cpu {
    /// The costs on one core.
    fn unit_costs<'a>(self, r: &'a Fmm, facts: &'a Facts) -> UnitCosts<'a> {
        r.costs.of(r.family.name(), r.precision, r.outputs, facts)
    }
}

impl Processor for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }
    fn unit(&self) -> &'static str {
        "one core"
    }
    fn isa(&self) -> Option<Isa> {
        self.isa
    }
    fn complete(&self, parts: Parts, _: &Variant) -> Result<Parts, Error> {
        Ok(parts)
    }
    fn has_plane(&self, precision: Precision) -> Result<(), Error> {
        only_f64(precision)
    }
    fn prices_of_plane(&self) -> PlaneCosts {
        PlaneCosts::ON_CORES
    }
    fn direct_precision(&self, asked: Precision) -> Precision {
        asked
    }
    fn translation(&self, parts: &Parts, _: usize, _: Precision) -> (&'static str, bool) {
        let translation = parts.translation;
        (translation.name(), translation != Translation::Direct)
    }
    fn prices<'a>(&self, r: &'a Fmm, facts: &'a Facts) -> Box<dyn Prices + 'a> {
        Box::new(self.unit_costs(r, facts))
    }
    fn memory(&self, facts: &Facts, size: &Size, threads: usize, parts: &Parts) -> Forecast {
        memory::on_cores(facts, size, threads, parts).into()
    }
    fn engine(&self, request: &Fmm, choice: &Choice, parts: Parts) -> Box<dyn Engine> {
        match choice.method {
            Method::Direct => Box::new(engine::Direct::new(request, choice)),
            _ => Box::new(engine::Octree::new(request, choice, parts)),
        }
    }
    fn engine_of_plane(&self, request: &Fmm, choice: &Choice, pairs: PlanePairs, theta: f64) -> Box<dyn Engine> {
        match choice.method {
            Method::Direct => Box::new(engine::Direct::new(request, choice)),
            _ => Box::new(engine::Plane::new(request, choice, pairs, theta)),
        }
    }
    fn on_a_sample(
        &self,
        request: &Fmm,
        choice: &Choice,
        parts: &Parts,
        order: usize,
        (tree, lists): (Tree, Lists),
    ) -> Result<Box<dyn Solver>, Error> {
        Ok(engine::host_solver(request, choice, parts, order, tree, lists)?)
    }
    fn on_a_rank(
        &self,
        request: &Fmm,
        choice: &Choice,
        parts: &Parts,
        order: usize,
        (ready, lists): (Ready, Lists),
    ) -> Result<OnARank, Error> {
        Ok(OnARank::Rows(engine::on_cores(request, choice, parts, order, ready, lists)?))
    }
}

impl Cuda {
    /// The costs on the device.
    fn unit_costs<'a>(self, r: &'a Fmm, facts: &'a Facts) -> UnitCosts<'a> {
        let name = if r.costs.has_devices() { self.device(r) } else { None };
        r.costs.on_device(name.as_deref(), (r.family.name(), r.precision, r.outputs), facts)
    }
}

impl Processor for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }
    fn unit(&self) -> &'static str {
        "the device"
    }
    fn device(&self, request: &Fmm) -> Option<String> {
        self.open(request.cache.as_ref()).ok().map(|device| device.info().name.clone())
    }
    fn number(&self) -> Option<usize> {
        Some(self.device)
    }
    fn opened(&self, request: &Fmm) -> Option<Result<Device, Error>> {
        Some(self.open(request.cache.as_ref()))
    }
    fn load(&self, request: &Fmm) -> Result<(), Error> {
        let device = self.open(request.cache.as_ref())?;
        match request.family.place() {
            Place::Plane(_) => device.load_programs_of_pyramids(),
            Place::Space if request.method == Method::Direct => Ok(()),
            Place::Space => {
                device.load_programs_of_plans()?;
                let shares = request.world.is_some() || request.backend.several().len() > 1;
                if shares { device.load_programs_of_shares() } else { Ok(()) }
            }
        }
    }
    fn expect(&self, request: &Fmm, choice: &Choice, bytes: u64) -> Result<(), Error> {
        let device = self.open(request.cache.as_ref())?;
        device.reserve(bytes)?;
        engine::load_programs(&device, request, choice)
    }
    fn complete(&self, mut parts: Parts, variant: &Variant) -> Result<Parts, Error> {
        let refuse = |operation, reason: &str| Err(Error::Unsupported { operation, reason: reason.to_string() });
        if variant.translation == Some(Translation::Direct) {
            return refuse("this translation", "a GPU has dense matrices and rotations (rcr, domains)");
        }
        if variant.truncation.is_some_and(|t| t != Truncation::Fixed) && parts.policy.theta().is_some() {
            return refuse("variable truncation", "multipoles of a treecode on a GPU have all degrees");
        }
        // Zeros in a dense matrix save no time on a GPU.
        parts.truncation = variant.truncation.unwrap_or(Truncation::Fixed);
        Ok(parts)
    }
    fn has_plane(&self, _: Precision) -> Result<(), Error> {
        Ok(())
    }
    fn prices_of_plane(&self) -> PlaneCosts {
        PlaneCosts::ON_A_DEVICE
    }
    /// Always f64: in f32, with coordinates in one piece, points that lie close together would not keep a tolerance.
    fn direct_precision(&self, _: Precision) -> Precision {
        Precision::F64
    }
    fn translation(&self, parts: &Parts, order: usize, precision: Precision) -> (&'static str, bool) {
        let translation = parts.translation_on_device(order, precision);
        (translation.name(), translation != backend_cuda::Translation::Dense)
    }
    fn prices<'a>(&self, r: &'a Fmm, facts: &'a Facts) -> Box<dyn Prices + 'a> {
        Box::new(self.unit_costs(r, facts))
    }
    /// A device counts edges alone.
    fn far_points(&self, mesh: &Mesh, mean_leaf: f64) -> u64 {
        mesh.edges.far_points(mean_leaf)
    }
    fn memory(&self, facts: &Facts, size: &Size, _: usize, parts: &Parts) -> Forecast {
        memory::on_a_device(facts, size, parts)
    }
    fn engine(&self, request: &Fmm, choice: &Choice, parts: Parts) -> Box<dyn Engine> {
        Box::new(engine::Device::new(*self, request, choice, parts))
    }
    fn engine_of_plane(&self, request: &Fmm, choice: &Choice, pairs: PlanePairs, theta: f64) -> Box<dyn Engine> {
        Box::new(engine::PlaneOnDevice::new(*self, request, choice, pairs, theta))
    }
    fn engine_of_share(&self, r: &Fmm, choice: &Choice, parts: Parts, world: &World) -> Option<Box<dyn Engine>> {
        Some(Box::new(engine::Shares::new(*self, r, choice, parts, world)))
    }
    fn on_a_sample(
        &self,
        request: &Fmm,
        _: &Choice,
        parts: &Parts,
        order: usize,
        (tree, lists): (Tree, Lists),
    ) -> Result<Box<dyn Solver>, Error> {
        let device = self.open(request.cache.as_ref())?;
        let placed = backend_cuda::Placed::upload(&device, &tree, &lists, None)?;
        Ok(engine::device_solver(request, parts, order, placed)?)
    }
    fn on_a_rank(
        &self,
        request: &Fmm,
        _: &Choice,
        parts: &Parts,
        order: usize,
        (ready, lists): (Ready, Lists),
    ) -> Result<OnARank, Error> {
        let [strengths, ghosts, values] = ready.rounds();
        let routes = Routes { given: ready.given(), strengths, ghosts, values };
        let device = self.open(request.cache.as_ref())?;
        let placed = backend_cuda::Placed::upload(&device, &ready.tree, &lists, Some(routes))?;
        Ok(OnARank::Arrays(engine::device_solver(request, parts, order, placed)?))
    }
}

impl Processor for Hybrid {
    fn name(&self) -> &'static str {
        "hybrid"
    }
    fn unit(&self) -> &'static str {
        "the cores and the device"
    }
    fn isa(&self) -> Option<Isa> {
        self.cpu.isa()
    }
    fn device(&self, request: &Fmm) -> Option<String> {
        self.cuda.device(request)
    }
    fn gpu(&self) -> Option<usize> {
        self.cuda.number()
    }
    fn load(&self, request: &Fmm) -> Result<(), Error> {
        // Direct sums run on the cores.
        let near = request.method != Method::Direct;
        if near { self.cuda.open(request.cache.as_ref()).map(drop) } else { Ok(()) }
    }
    fn complete(&self, parts: Parts, variant: &Variant) -> Result<Parts, Error> {
        self.cpu.complete(parts, variant)
    }
    fn has_plane(&self, _: Precision) -> Result<(), Error> {
        let reason = "pyramids are on cores or on a GPU, not on both".to_string();
        Err(Error::Unsupported { operation: "a sum in the plane", reason })
    }
    fn prices_of_plane(&self) -> PlaneCosts {
        self.cpu.prices_of_plane()
    }
    fn direct_precision(&self, asked: Precision) -> Precision {
        self.cpu.direct_precision(asked)
    }
    fn translation(&self, parts: &Parts, order: usize, precision: Precision) -> (&'static str, bool) {
        self.cpu.translation(parts, order, precision)
    }
    fn prices<'a>(&self, r: &'a Fmm, facts: &'a Facts) -> Box<dyn Prices + 'a> {
        let threads = r.priced_threads.or(r.threads).unwrap_or_else(cores);
        Box::new(HybridPrices::new(self.cpu.unit_costs(r, facts), threads, self.cuda.unit_costs(r, facts)))
    }
    fn memory(&self, facts: &Facts, size: &Size, threads: usize, parts: &Parts) -> Forecast {
        self.cpu.memory(facts, size, threads, parts)
    }
    fn near_fields(&self, request: &Fmm) -> Result<Option<Arc<dyn NearFields>>, Error> {
        let device = self.cuda.open(request.cache.as_ref())?;
        Ok(Some(Arc::new(NearOnDevice::new(&device, request.precision))))
    }
    fn engine(&self, request: &Fmm, choice: &Choice, parts: Parts) -> Box<dyn Engine> {
        self.cpu.engine(request, choice, parts)
    }
    fn engine_of_plane(&self, request: &Fmm, choice: &Choice, pairs: PlanePairs, theta: f64) -> Box<dyn Engine> {
        self.cpu.engine_of_plane(request, choice, pairs, theta)
    }
    fn on_a_sample(
        &self,
        request: &Fmm,
        choice: &Choice,
        parts: &Parts,
        order: usize,
        boxes: (Tree, Lists),
    ) -> Result<Box<dyn Solver>, Error> {
        self.cpu.on_a_sample(request, choice, parts, order, boxes)
    }
    fn on_a_rank(
        &self,
        request: &Fmm,
        choice: &Choice,
        parts: &Parts,
        order: usize,
        boxes: (Ready, Lists),
    ) -> Result<OnARank, Error> {
        self.cpu.on_a_rank(request, choice, parts, order, boxes)
    }
}
