//! The request of the caller: the builder of a plan.

use crate::attributes::{self, Attributes};
use crate::backend::{Backend, Cpu};
use crate::candidates::{self, Seen};
use crate::costs::CostModel;
use crate::decide;
use crate::threads::Threads;
use crate::variant::{Expansion, ListPolicy, Translation, Truncation, Variant};
use adaptive2d::Norm;
use fmm_dist::{Strategy, World};
use fmm_families::AnyFamily;
use fmm_traits::{Error, Family, Outputs, Precision, SelfInteraction};
use rayon::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;

/// The method that computes the sums.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Method {
    /// The cheapest method that keeps the tolerance, by the prices of a [`CostModel`]: direct summation, equivalent
    /// densities, interpolation, a treecode, or spherical harmonics if the kernel has them. For kernels with Laurent
    /// series (`Harmonic2d`, `Laplace2d`, and your own `Analytic` kernels): Laurent series or direct summation.
    #[default]
    Auto,
    /// FMM by equivalent densities on surfaces (Ying, Biros & Zorin 2004): kernels of elliptic equations.
    EquivalentDensities,
    /// FMM by interpolation on grids that fill the boxes: any kernel that is smooth away from r = 0, such as a
    /// Gaussian, a covariance or 1/r². Fields are interpolated by fields of the kernel itself, instead of polynomials.
    Interpolation,
    /// FMM by spherical harmonics (Gumerov & Duraiswami 2008): Laplace charges and dipoles, gravity.
    SphericalHarmonics,
    /// Treecode: multipoles straight to targets (Barnes & Hut 1986), O(N log N).
    Treecode,
    /// FMM in the plane by Laurent series (Goude & Engblom 2012).
    Laurent,
    /// Direct summation over all pairs.
    Direct,
}

impl Method {
    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Method::Auto => "auto",
            Method::EquivalentDensities => "equivalent",
            Method::Interpolation => "interpolation",
            Method::SphericalHarmonics => "spherical",
            Method::Treecode => "treecode",
            Method::Laurent => "laurent",
            Method::Direct => "direct",
        }
    }
}

/// Most ranks on GPUs that each have the boxes of the tree of all: the shares that read a box are the bits of a number.
const MOST_WITH_ONE_TREE: usize = u32::BITS as usize;

/// The progress of a plan or an evaluation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Progress {
    /// The next phase: `tree`, `probe`, `lists`, `operators`, or the name of a [`Stage`](crate::Stage). A plan with a
    /// tolerance may make trees and measure several times.
    pub phase: &'static str,
    /// Finished fraction of the plan (first four phases) or of the evaluation, in [0, 1).
    pub fraction: f64,
}

/// A progress callback; it cancels by returning `false`.
pub(crate) type Watch = Arc<dyn Fn(Progress) -> bool + Send + Sync>;

/// What a transposed plan takes over from the plan that it transposes, so that both have the same leaves and near
/// pairs.
#[derive(Clone, Copy)]
pub(crate) struct Inherited {
    /// The error that the sums may have; `None` if the caller gave an order.
    pub error: Option<f64>,
    /// Mean points per leaf.
    pub occupancy: f64,
}

/// The builder of a [`Plan`](crate::Plan). Defaults: tolerance 1e-6, potential only, f64, everything else chosen.
#[derive(Clone)]
pub struct Fmm {
    pub(crate) family: AnyFamily,
    pub(crate) tolerance: Option<f64>,
    pub(crate) order: Option<usize>,
    pub(crate) inherited: Option<Inherited>,
    pub(crate) norm: Norm,
    pub(crate) method: Method,
    pub(crate) variant: Variant,
    pub(crate) outputs: Outputs,
    pub(crate) precision: Precision,
    pub(crate) ncrit: Option<usize>,
    pub(crate) root: Option<([f64; 3], f64)>,
    pub(crate) threads: Option<usize>,
    /// The number of threads by which sums are priced, where ranks have agreed on one.
    pub(crate) priced_threads: Option<usize>,
    pub(crate) backend: Backend,
    pub(crate) cache: Option<PathBuf>,
    pub(crate) stages_apart: bool,
    pub(crate) costs: Arc<CostModel>,
    pub(crate) watch: Option<Watch>,
    pub(crate) attributes: Attributes,
    /// The ranks that plan and sum together, if there are several.
    pub(crate) world: Option<World>,
    /// How multipoles of shared boxes are completed; `None`: the usual way for the number of ranks.
    pub(crate) exchange: Option<Strategy>,
    /// Whether ranks on GPUs make trees of their own on the host, because a GPU could not hold the tree of all.
    pub(crate) host_trees: bool,
    /// Speed of this rank relative to the others.
    pub(crate) speed: f64,
    /// The family of the caller, if `family` takes points in other coordinates ([`crate::coordinates`]).
    pub(crate) unmapped: Option<AnyFamily>,
}

impl Fmm {
    /// A request for sums of a kernel: one of this crate ([`Laplace`](crate::Laplace)), or one made at run time
    /// ([`Traced`](crate::Traced)). For a Rust type of your own use [`Fmm::custom`]. (A *family* is a kernel for
    /// sources together with the kernels that its far field and its outputs need.)
    pub fn new(family: impl Into<AnyFamily>) -> Self {
        Fmm {
            family: family.into(),
            tolerance: None,
            order: None,
            inherited: None,
            norm: Norm::L2,
            method: Method::Auto,
            variant: Variant::default(),
            outputs: Outputs::POTENTIAL,
            precision: Precision::F64,
            ncrit: None,
            root: None,
            threads: None,
            priced_threads: None,
            backend: Backend::Cpu(Cpu::default()),
            cache: None,
            stages_apart: false,
            costs: Arc::default(),
            watch: None,
            attributes: Attributes::default(),
            world: None,
            exchange: None,
            host_trees: false,
            speed: 1.0,
            unmapped: None,
        }
    }
    /// A request for sums of your own [`Kernel`](crate::Kernel) or [`Family`]. The Rust compiler then compiles the pair
    /// sums of this kernel, for each instruction set; everything else is compiled already. A kernel that needs no
    /// compiler is a [`Traced`](crate::Traced). A kernel of the plane is summed on a quadtree: for Laurent series write
    /// `Fmm::new(Laplace2d)`, or `Fmm::new(AnyFamily::analytic(kernel))` for your own [`Analytic`](crate::Analytic)
    /// kernel.
    pub fn custom<F: Family>(family: F) -> Self {
        Fmm::new(AnyFamily::new(family))
    }
    /// Relative ℓ2 error promised for each output (crate documentation). The plan measures the order that keeps the
    /// tolerance. Default 1e-6; in f32 1e-5, or the smallest error that the method reaches if this error is larger.
    pub fn tolerance(mut self, tolerance: f64) -> Self {
        self.tolerance = Some(tolerance);
        self
    }
    /// Order p of the expansion instead of a tolerance: 3 … 16 for equivalent densities, 3 … 12 for interpolation (3 …
    /// 16 in the plane), 1 … 40 for spherical harmonics, 1 … 60 for Laurent series. Nothing is measured.
    /// [`Method::Auto`] with an order takes equivalent densities (Laurent series for a kernel that has them) or direct
    /// summation; for a Gaussian or a covariance name [`Method::Interpolation`]. A tolerance and an order together are
    /// [`Error::ToleranceAndOrder`].
    pub fn order(mut self, order: usize) -> Self {
        self.order = Some(order);
        self
    }
    /// The error that the tolerance bounds. Default: the relative ℓ2 error. [`Norm::Max`] is for
    /// `Harmonic2d`.
    pub fn norm(mut self, norm: Norm) -> Self {
        self.norm = norm;
        self
    }
    /// Whether a source acts on itself, if the targets are the sources. Default: [`SelfInteraction::Skip`], but
    /// [`SelfInteraction::Include`] for a [`Traced`](crate::Traced) kernel that is finite at r = 0. A singular kernel
    /// cannot include it.
    pub fn self_interaction(mut self, own: SelfInteraction) -> Self {
        self.family = self.family.self_interaction(own);
        self
    }
    /// Gives each source a value of its own of the parameter `name`, such as a radius: one finite number per source, in
    /// the order of the sources and in the unit of the parameter. The values replace the value of the parameter, and
    /// those of an earlier call. The kernel must be one made at run time ([`Traced`](crate::Traced)).
    ///
    /// The far field of a box is represented by sources that have one value of the parameter, the given value closest to
    /// the mean of all, or by sources with a few values between which it is interpolated ([`nodes`](Fmm::nodes)). The
    /// error grows with the spread of the values; a plan with a tolerance measures it, and chooses how many values
    /// there are. [`Plan::set_points`](crate::Plan::set_points) keeps the values, source by source. Such a plan has
    /// no [`Plan::apply_transpose`](crate::Plan::apply_transpose).
    ///
    /// Planning reports wrong values: [`Error::UnknownParameter`], [`Error::Shape`], [`Error::NotFinite`], and
    /// [`Error::Unsupported`] for a compiled kernel.
    pub fn attribute(mut self, name: &str, values: &[f64]) -> Self {
        // A plan reports the error.
        if let Ok(family) = self.family.attribute(name, attributes::usual(values)) {
            self.family = family;
        }
        self.attributes.given.retain(|(other, _)| other != name);
        self.attributes.given.push((name.to_string(), values.into()));
        self
    }
    /// Lets the system's C compiler (the program `cc`, or that of the environment variable `CC`) make the pair loops of
    /// a kernel that was made at run time ([`Traced`](crate::Traced)), instead of the interpreter. The first plan with
    /// a kernel then takes about half a second longer, and sums are up to four times as fast, about as fast as for a
    /// compiled kernel. For other kernels nothing changes. A GPU does not need it: it compiles every kernel.
    ///
    /// Planning reports a missing or failing compiler as [`Error::Unsupported`].
    pub fn compiled(mut self) -> Self {
        self.family = self.family.compiled();
        self
    }
    /// The method. Default [`Method::Auto`].
    pub fn method(mut self, method: Method) -> Self {
        self.method = method;
        self
    }
    /// The outputs at each target. Default: the potential.
    pub fn outputs(mut self, outputs: Outputs) -> Self {
        self.outputs = outputs;
        self
    }
    /// Arithmetic in f32 or f64. Coordinates are f64 in either case, or widened to f64. Default f64.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }
    /// Leaf capacity: a box with more sources or more targets is split. For kernels with Laurent series: the number of
    /// points that a leaf should have. Default: chosen by the cost model, together with the root cube.
    pub fn ncrit(mut self, ncrit: usize) -> Self {
        self.ncrit = Some(ncrit);
        self
    }
    /// Lower corner and side of the root cube, which must contain all points. Default: chosen.
    pub fn root_cube(mut self, corner: [f64; 3], side: f64) -> Self {
        self.root = Some((corner, side));
        self
    }
    /// Plans and sums together with other ranks: each rank gives its own points and strengths and gets the sums at its
    /// own targets, in its own order. All ranks make the same request, and call [`Fmm::plan`] and the methods of
    /// [`Plan`](crate::Plan) in the same order. If a rank fails, all ranks return the same error. After [`Error::Rank`]
    /// and [`Error::RanksDiffer`] plans still work; after [`Error::RankLost`] every further call fails. The file
    /// `docs/ranks.md` of the repository has an example.
    ///
    /// A tree is that of one rank with all points, in the order of ranks, and with [`Strategy::Frontier`] sums have the
    /// same bits on any number of ranks. Method and order for a tolerance are those of one rank, too: errors are measured
    /// on one sample, and all ranks take the measurements of rank 0.
    ///
    /// With the backend [`Cuda`](crate::Cuda) a rank computes on a GPU; several ranks may share one. Up to 32 ranks then
    /// have the boxes of one tree on each GPU, if no [`exchange`](Fmm::exchange) is named. For a tolerance, each GPU also
    /// gets the points of all while errors are measured. If memory does not suffice, points of the host are placed by
    /// trees of the host.
    ///
    /// Planning refuses, by [`Error::Unsupported`], kernels of the plane, attributes of sources, and arrays on a device with
    /// more ranks or a named exchange.
    pub fn ranks(mut self, world: &World) -> Self {
        self.world = (world.size() > 1).then(|| world.clone());
        self
    }
    /// Runs a step on all ranks, which all get the error of one; on one rank, just runs it.
    pub(crate) fn jointly<R>(&self, work: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
        match &self.world {
            Some(world) => world.together(work),
            None => work(),
        }
    }
    /// Whether each rank has the boxes of the tree of all ranks on its GPU: if nobody asked for an exchange of trees that the
    /// ranks make on the host, and there is a bit for each rank.
    pub(crate) fn has_whole_trees(&self) -> bool {
        let few = |world: &World| world.size() <= MOST_WITH_ONE_TREE;
        let on_devices = self.backend.processor().number().is_some();
        on_devices && self.exchange.is_none() && !self.host_trees && self.world.as_ref().is_some_and(few)
    }
    /// The request of a rank for itself alone.
    pub(crate) fn alone(&self) -> Fmm {
        Fmm { world: None, ..self.clone() }
    }
    /// How multipoles of boxes that several [`ranks`](Fmm::ranks) share are completed. Default [`Strategy::Frontier`]
    /// up to 256 ranks, [`Strategy::Direct`] above.
    pub fn exchange(mut self, strategy: Strategy) -> Self {
        self.exchange = Some(strategy);
        self
    }
    /// How fast this rank is, relative to the other [`ranks`](Fmm::ranks): a positive number, by default 1. Fast
    /// methods give a rank work in proportion. The tree and the sums stay the same. Planning on several ranks reports
    /// another number by [`Error::Parameter`].
    pub fn speed(mut self, speed: f64) -> Self {
        self.speed = speed;
        self
    }
    /// The request for the transposed sums w_j = Σ_i K(x_i − y_j)ᵀ·v_i with `outputs`, to be planned with the targets
    /// x_i as sources and the sources y_j as targets. Everything else is asked as for the sums of this request; a
    /// method that the transposed kernel does not have is chosen anew. [`Plan::transposed`](crate::Plan::transposed)
    /// takes the points of a plan.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if sources have attributes, and for kernels of the plane without K(−r) = K(r)ᵀ.
    pub fn transposed(&self, outputs: Outputs) -> Result<Fmm, Error> {
        let mut request = Fmm { family: self.family.transposed()?, outputs, ..self.clone() };
        if matches!(request.method, Method::SphericalHarmonics | Method::Treecode)
            && request.family.facts(outputs)?.harmonic.is_err()
        {
            (request.method, request.order, request.variant) = (Method::Auto, None, Variant::default());
        }
        Ok(request)
    }
    /// Number of threads. Default: all. The number changes no result. Copies of large arrays to and from a GPU use up
    /// to ten threads of their own.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }
    /// The backend. Default `Cpu::default()`.
    pub fn backend(mut self, backend: impl Into<Backend>) -> Self {
        self.backend = backend.into();
        self
    }
    /// Folder that keeps translation operators and compiled GPU stages between runs. A file is found by a fingerprint
    /// of everything it depends on. Default: operators and stages stay in memory only.
    pub fn operator_cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache = Some(folder.into());
        self
    }
    /// Runs no GPU stage beside another, so that the seconds of each stage are its own. An evaluation then takes some
    /// per cent longer. CPU stages always run one after the other.
    pub fn stages_apart(mut self) -> Self {
        self.stages_apart = true;
        self
    }
    /// The cost model that chooses method and leaf sizes. Default: the built-in model, so that no choice depends on the
    /// machine. [`Description`](crate::Description) reports the model of a plan.
    pub fn cost_model(mut self, costs: CostModel) -> Self {
        self.costs = Arc::new(costs);
        self
    }
    /// A callback before each phase, from the thread that runs the phase. If the callback returns `false`, the call
    /// stops with [`Error::Cancelled`] and the plan stays usable.
    pub fn progress(mut self, watch: impl Fn(Progress) -> bool + Send + Sync + 'static) -> Self {
        self.watch = Some(Arc::new(watch));
        self
    }
    /// The translation of spherical harmonics. Default [`Translation::Rcr`], the fastest on a CPU. A GPU multiplies
    /// dense matrices where dense products are faster, unless the caller asks for [`Translation::Rcr`]. A GPU has no
    /// other translation. Only for [`Method::SphericalHarmonics`] and for treecodes of spherical harmonics: planning
    /// with another method, [`Method::Auto`] included, returns [`Error::Unsupported`].
    pub fn translation(mut self, translation: Translation) -> Self {
        self.variant.translation = Some(translation);
        self
    }
    /// Whether distant boxes use fewer degrees of spherical harmonics. Default [`Truncation::Variable`]. Fewer degrees
    /// save nothing on a GPU, where the default is [`Truncation::Fixed`]. For the methods of
    /// [`translation`](Self::translation).
    pub fn truncation(mut self, truncation: Truncation) -> Self {
        self.variant.truncation = Some(truncation);
        self
    }
    /// The list policy of the FMM. Default [`ListPolicy::Uvwx`]. [`ListPolicy::Stencil119`] is for
    /// [`Method::SphericalHarmonics`]; with another method, [`Method::Auto`] included, planning returns
    /// [`Error::Unsupported`].
    pub fn lists(mut self, lists: ListPolicy) -> Self {
        self.variant.lists = Some(lists);
        self
    }
    /// The expansion of a treecode. Default [`Expansion::Spherical`] where the kernel has it. With a method other than
    /// [`Method::Treecode`] planning returns [`Error::Unsupported`].
    pub fn expansion(mut self, expansion: Expansion) -> Self {
        self.variant.expansion = Some(expansion);
        self
    }
    /// The opening angle of a treecode: a target leaf sees a box of side l as a whole if l ≤ θ·d, where d is the
    /// distance from the centre of the box to the cube of the leaf. Default: 0.6 with a given order, else chosen with
    /// the order. For kernels with Laurent series, the θ of the criterion of separation (Goude & Engblom 2012, eq.
    /// 2.1), by default 0.55. With another method, [`Method::Auto`] in space included, planning returns
    /// [`Error::Unsupported`].
    pub fn theta(mut self, theta: f64) -> Self {
        self.variant.theta = Some(theta);
        self
    }
    /// The number of values of each [attribute](Fmm::attribute) at which far fields are expanded, 1 to 4. Default: 1 with
    /// a given order, else chosen with the order. Each value has operators and expansions of its own, so far fields
    /// take so many times as long; with two attributes the square of it. An attribute that has one value for all
    /// sources, or is a factor of the kernel, always has one. For [`Method::EquivalentDensities`],
    /// [`Method::Interpolation`], and treecodes with their expansions. For other methods, and without attributes, planning
    /// returns [`Error::Unsupported`].
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.variant.nodes = Some(nodes);
        self
    }
    /// Prepares this process for plans of this request. The call starts the [threads](Fmm::threads) of a plan, opens the GPUs of
    /// the backend, and loads the programs that every plan needs on them. Programs come from the folder of
    /// [`operator_cache`](Fmm::operator_cache); otherwise they are compiled, which takes seconds. A call is optional, because a
    /// plan makes up for what is missing. Called beside other work, such as reading the points, it saves the first plan some
    /// milliseconds.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a list of devices or a number of threads that no plan takes, [`Error::Threads`],
    /// [`Error::NoDevice`], and errors of a device and of its compiler.
    pub fn open(&self) -> Result<(), Error> {
        self.backend.check()?;
        let load = |backend: &Backend| backend.processor().load(self);
        // Dropped threads are kept for the first plan.
        Threads::new(candidates::threads(self)?)?.install(|| match &self.backend.several()[..] {
            [] => load(&self.backend),
            // The others find in the cache folder what the first has compiled.
            [first, others @ ..] => load(first).and_then(|()| others.par_iter().try_for_each(load)),
        })
    }
    /// Prepares this process for a plan of about `n_sources` sources and `n_targets` targets, counted over all
    /// [ranks](Fmm::ranks). The call does what [`open`](Fmm::open) does. On a GPU and in space it also loads the programs of the
    /// method and the order that are forecast, and takes the memory of the plan from the driver, which needs a millisecond for
    /// each gigabyte. It takes none if the plan needs more than half of the free memory, or if the backend limits its memory.
    /// The process keeps this memory, as it keeps that of a dropped plan. If both numbers are equal, the targets are assumed to
    /// be the sources.
    ///
    /// # Errors
    /// As [`open`](Fmm::open) and [`memory`](Fmm::memory).
    pub fn open_for(&self, n_sources: usize, n_targets: usize) -> Result<(), Error> {
        self.open()?;
        let (counts, apart) = ([n_sources, n_targets], n_sources != n_targets);
        let choice = decide::forecast(self, Seen { counts, apart, extent: 0.0 })?;
        let several = self.backend.several();
        // If the caller gives the order, each device has a share of the points. Otherwise errors are measured, and each has all of them.
        let shares = if self.order.is_some() { several.len().max(1) } else { 1 };
        let bytes = choice.forecast.bytes / shares as u64;
        let expect = |backend: &Backend| backend.processor().expect(self, &choice, bytes);
        Threads::new(candidates::threads(self)?)?.install(|| match &several[..] {
            [] => expect(&self.backend),
            _ => several.par_iter().try_for_each(expect),
        })
    }
    /// Strengths per source.
    ///
    /// # Errors
    /// An output that the kernel does not have.
    pub fn strengths(&self) -> Result<usize, Error> {
        Ok(self.family.facts(self.outputs)?.linear())
    }
}
