//! What a plan decides from the request and the numbers of points.

use crate::cost::BUILT_IN;
use crate::request::{Backend, Fmm, Method};
use crate::tuning::{self, Scene};
use crate::validate::MAX_POINTS;
use crate::variant::{Expansion, Parts, Policy, Translation, Truncation, parts};
use adaptive2d::{Norm, PlaneKernel};
use backend_cpu::{Isa, Precision};
use fmm_families::{Facts, Place, only_f64};
use fmm_traits::Error;

/// Most threads a plan may ask for.
const MAX_THREADS: usize = 4096;

/// What was decided.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub facts: Facts,
    /// How; never [`Method::Auto`].
    pub method: Method,
    pub why: String,
    /// Name of the costs that this was chosen by.
    pub costs: String,
    pub tolerance: Option<f64>,
    /// None when the sum is direct.
    pub order: Option<usize>,
    /// Of the fast method.
    pub layout: Layout,
    pub isa: Isa,
    pub threads: usize,
    /// Mean points of a leaf; in the plane the desired population.
    pub occupancy: f64,
    pub forecast: u64,
}

/// Boxes and what they carry.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Layout {
    /// In space.
    Octree(Parts),
    /// In the plane, with the θ of the criterion of separation.
    Pyramid { kernel: PlaneKernel, theta: f64 },
}

/// The fast method that a request stands for, whether or not it is used.
struct Fast {
    method: Method,
    layout: Layout,
    order: usize,
    occupancy: f64,
    /// Whether direct summation takes less time.
    direct_is_cheaper: bool,
    /// Forecasts that were compared, for people.
    forecasts: String,
    /// Name of the costs behind them.
    costs: String,
}

/// What is known of the points before there is a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Sources and targets.
    pub counts: [usize; 2],
    /// Whether the targets are points of their own.
    pub apart: bool,
    /// Largest extent along an axis; 0 if it is not known.
    pub extent: f64,
    /// The order that spherical harmonics need for the tolerance, once it is known; beyond
    /// [`fmm_kernels::spherical::MAX_ORDER`] none is enough.
    pub harmonics: Option<usize>,
}

impl Seen {
    fn scene(self, r: &Fmm) -> Scene {
        Scene { sources: self.counts[0], apart: self.apart, ncrit: r.ncrit, again: !on_gpu(r) }
    }
}

/// Checks the request and decides.
pub(crate) fn choose(r: &Fmm, seen: Seen) -> Result<Choice, Error> {
    let [n, m] = seen.counts;
    r.family.validate()?;
    for (what, found) in [("sources", n), ("targets", m)] {
        if found > MAX_POINTS {
            return Err(Error::TooMany { what, found, limit: MAX_POINTS });
        }
    }
    let facts = r.family.facts(r.outputs)?;
    let tolerance = match (r.tolerance, r.order) {
        (Some(tolerance), Some(order)) => return Err(Error::ToleranceAndOrder { tolerance, order }),
        (Some(tolerance), None) => Some(tolerance),
        (None, Some(_)) => None,
        (None, None) => Some(tuning::default_tolerance(r.family.name(), r.outputs, r.precision, seen.scene(r))),
    };
    r.costs.validate()?;
    let fast = match r.family.place() {
        Place::Space(_) => in_space(r, &facts, tolerance, seen)?,
        Place::Plane(kernel) => in_plane(r, kernel, tolerance, seen.counts)?,
    };
    if r.ncrit == Some(0) {
        return Err(Error::Parameter { name: "ncrit", value: 0.0, requirement: "must be at least 1" });
    }
    let threads = match r.threads {
        None => std::thread::available_parallelism().map_or(1, |n| n.get()),
        Some(t) if (1..=MAX_THREADS).contains(&t) => t,
        Some(t) => {
            return Err(Error::Parameter { name: "threads", value: t as f64, requirement: "must be 1 to 4096" });
        }
    };
    let isa = if let Backend::Cpu(cpu) = r.backend { cpu.isa } else { None };
    let isa = isa.unwrap_or_else(Isa::detect);
    if !Isa::available().contains(&isa) {
        let reason = format!("this machine has no {}", isa.name());
        return Err(Error::Unsupported { operation: "the instruction set", reason });
    }
    let (method, why) = match r.method {
        Method::Auto if fast.direct_is_cheaper => {
            (Method::Direct, format!("cheaper than the fast method for so few pairs{}", fast.forecasts))
        }
        Method::Auto => (fast.method, format!("cheaper than direct summation for so many pairs{}", fast.forecasts)),
        method => (method, "asked for".to_string()),
    };
    let order = (method != Method::Direct).then_some(fast.order);
    let occupancy = r.ncrit.map_or(fast.occupancy, |k| k as f64);
    // Leaves of at most ncrit points hold about a third of it on average.
    let mean = if r.ncrit.is_some() { occupancy / 3.0 } else { occupancy };
    let wide = if r.precision == Precision::F32 { 4 } else { 8 };
    let forecast = match &fast.layout {
        Layout::Pyramid { .. } => tuning::plane_forecast(&facts, order, [n, m], occupancy),
        Layout::Octree(parts) if on_gpu(r) => tuning::forecast_on_gpu(&facts, order, [n, m], mean, wide, parts),
        Layout::Octree(parts) => tuning::forecast(&facts, order, [n, m], mean, wide, threads, parts),
    };
    let (layout, costs) = (fast.layout, fast.costs);
    Ok(Choice { facts, method, why, costs, tolerance, order, layout, isa, threads, occupancy, forecast })
}

fn on_gpu(r: &Fmm) -> bool {
    matches!(r.backend, Backend::Cuda(_))
}

/// Whether the tolerance asks for no order: direct summation in f64 reaches any.
fn any_tolerance(r: &Fmm) -> bool {
    r.method == Method::Direct && r.precision == Precision::F64
}

/// The fast method on an octree; of [`Method::Auto`] the one that costs less.
fn in_space(r: &Fmm, facts: &Facts, tolerance: Option<f64>, seen: Seen) -> Result<Fast, Error> {
    let [n, m] = seen.counts;
    if on_gpu(r) {
        let (method, order, parts) = on_octree(r, r.method, facts, tolerance, seen)?;
        return Ok(Fast {
            method,
            layout: Layout::Octree(parts),
            order,
            occupancy: tuning::occupancy_on_gpu(facts, order, r.precision, &parts),
            direct_is_cheaper: tuning::direct_is_cheaper_on_gpu(facts, order, n, m),
            forecasts: String::new(),
            costs: BUILT_IN.to_string(),
        });
    }
    let (costs, source) = r.costs.of(r.family.name(), r.precision, r.outputs, facts);
    let mut candidates = vec![on_octree(r, r.method, facts, tolerance, seen)?];
    // An order means other errors in another expansion: only a tolerance compares them.
    if r.method == Method::Auto && r.order.is_none() {
        let harmonics = on_octree(r, Method::SphericalHarmonics, facts, tolerance, seen);
        let known = harmonics.map(|(method, typical, parts)| (method, typical.max(seen.harmonics.unwrap_or(0)), parts));
        candidates.extend(known.ok().filter(|(_, order, _)| *order <= fmm_kernels::spherical::MAX_ORDER));
    }
    // Boxes of a softened kernel are not smaller than its core.
    let core = r.family.near_radius(tolerance.unwrap_or(f64::INFINITY));
    let crowd =
        if core > 0.0 && seen.extent > 0.0 { n.max(m) as f64 * (core / seen.extent).min(1.0).powi(3) } else { 0.0 };
    let forecast = |(method, order, parts): (Method, usize, Parts)| {
        let occupancy = match parts.policy {
            // Nothing to balance: a treecode has no M2L.
            Policy::Treecode { .. } if parts.expansion == Expansion::Spherical => tuning::HARMONIC_TREECODE_LEAF,
            Policy::Treecode { .. } => tuning::TREECODE_LEAF,
            _ => costs.occupancy(parts.expansion, order),
        };
        let s = r.ncrit.map_or(occupancy, |k| (k as f64 / 3.0).max(1.0));
        (costs.fast(parts.expansion, order, s.max(crowd), n, m), method, order, parts, occupancy)
    };
    let mut found: Vec<_> = candidates.into_iter().map(forecast).collect();
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    let direct = costs.direct(n, m);
    let time = |x: f64| if x < 1.0 { format!("{:.2} ms", 1e3 * x) } else { format!("{x:.2} s") };
    let each = |&(seconds, method, order, ..): &(f64, Method, usize, Parts, f64)| {
        format!("{} {} at order {order}", method.name(), time(seconds))
    };
    let forecasts = found.iter().map(each).collect::<Vec<_>>().join(", ");
    let forecasts = format!("; forecast for one core: {forecasts}, direct {}", time(direct));
    let (seconds, method, order, parts, occupancy) = found.swap_remove(0);
    let (layout, direct_is_cheaper) = (Layout::Octree(parts), direct <= seconds);
    Ok(Fast { method, layout, order, occupancy, direct_is_cheaper, forecasts, costs: source.to_string() })
}

/// Order and parts of a fast method.
fn on_octree(
    r: &Fmm,
    method: Method,
    facts: &Facts,
    tolerance: Option<f64>,
    seen: Seen,
) -> Result<(Method, usize, Parts), Error> {
    let kernel = r.family.name();
    let refuse = |operation, reason: String| Err(Error::Unsupported { operation, reason });
    if method == Method::Laurent {
        return refuse("Laurent series", format!("kernel {kernel} is not one of the plane"));
    }
    if r.norm == Norm::Max {
        return refuse("the largest relative error", format!("kernel {kernel} promises ℓ2"));
    }
    let mut parts = parts(&r.variant, method, &facts.harmonic)?;
    if on_gpu(r) {
        if parts.policy == Policy::Stencil119 {
            return refuse("these lists on a GPU", "it makes U, V, W and X lists, and those of treecodes".to_string());
        }
        if r.variant.translation.is_some_and(|t| t != Translation::Rcr) {
            return refuse("these translations on a GPU", "it has dense matrices and rotations (rcr)".into());
        }
        if r.variant.truncation.is_some_and(|t| t != Truncation::Fixed) && parts.policy.theta().is_some() {
            return refuse("fewer degrees on a GPU", "multipoles of a treecode take all of them there".to_string());
        }
        // Zeros of a matrix save nothing there.
        parts.spherical.truncation = r.variant.truncation.unwrap_or(Truncation::Fixed);
    }
    let (order, parts) = match (r.order, tolerance) {
        (None, Some(e)) if any_tolerance(r) => {
            tuning::check_positive(e)?;
            (tuning::MAX_ORDER, parts)
        }
        (Some(order), _) => tuning::given(order, parts)?,
        (None, _) if r.variant.translation == Some(Translation::Domains) => {
            let reason = "errors of translations to domains were not measured: give an order".to_string();
            return refuse("a tolerance for this variant", reason);
        }
        (None, e) => tuning::chosen(kernel, r.outputs, e.unwrap_or(f64::NAN), r.precision, seen.scene(r), parts)?,
    };
    let method = if method == Method::Auto { Method::EquivalentDensities } else { method };
    Ok((method, order, parts))
}

/// The fast method in the plane.
fn in_plane(r: &Fmm, kernel: PlaneKernel, tolerance: Option<f64>, [n, m]: [usize; 2]) -> Result<Fast, Error> {
    let (name, v) = (r.family.name(), &r.variant);
    let refuse = |operation, reason: String| Err(Error::Unsupported { operation, reason });
    only_f64(r.precision)?;
    if on_gpu(r) {
        return refuse("a GPU", format!("kernel {name} is of the plane"));
    }
    if !matches!(r.method, Method::Auto | Method::Laurent | Method::Direct) {
        return refuse("a method of space", format!("kernel {name} has Laurent series"));
    }
    if v.translation.is_some() || v.truncation.is_some() || v.lists.is_some() || v.expansion.is_some() {
        return refuse("a variant", format!("kernel {name} has one method, by Laurent series"));
    }
    if r.norm == Norm::Max && kernel != PlaneKernel::Harmonic {
        return refuse("the largest relative error", format!("potentials of kernel {name} pass through 0"));
    }
    if r.root.is_some() {
        return refuse("a root cube", "boxes of the plane are shrunk to their points".to_string());
    }
    if r.method == Method::Direct && v.theta.is_some() {
        return refuse("θ", "direct summation separates no boxes".to_string());
    }
    if r.norm == Norm::Max && r.order.is_some() {
        return refuse("a norm", "it belongs to a tolerance, and an order was given".to_string());
    }
    let theta = v.theta.unwrap_or(tuning::THETA);
    if !(theta > 0.0 && theta < 1.0) {
        return Err(Error::Parameter { name: "theta", value: theta, requirement: "must lie between 0 and 1" });
    }
    let (min, max) = (*tuning::PLANE_ORDERS.start(), *tuning::PLANE_ORDERS.end());
    let order = match (r.order, tolerance) {
        (Some(order), _) if !tuning::PLANE_ORDERS.contains(&order) => return Err(Error::Order { order, min, max }),
        (Some(order), _) => order,
        (None, Some(e)) if any_tolerance(r) => {
            tuning::check_positive(e)?;
            max
        }
        (None, e) => {
            tuning::plane_order(name, r.outputs, e.unwrap_or(f64::NAN), theta, r.norm, r.ncrit.filter(|&k| k > 0))?
        }
    };
    Ok(Fast {
        method: Method::Laurent,
        layout: Layout::Pyramid { kernel, theta },
        order,
        occupancy: tuning::plane_population(order),
        direct_is_cheaper: tuning::plane_direct_is_cheaper(order, n, m),
        forecasts: String::new(),
        costs: BUILT_IN.to_string(),
    })
}
