//! The candidates for a sum: checks a request and lists the methods that can compute the sum, the cheapest first.
//!
//! Candidates depend on the points only through their numbers and extent. Orders are first guesses for the probe.
//! Seconds are forecasts for points that fill a cube evenly.

use crate::costs;
use crate::parts::{Grid, Parts, parts};
use crate::request::{Fmm, Method};
use crate::validate::MAX_POINTS;
use crate::variant::Expansion;
use adaptive2d::{Norm, laurent};
use backend_cpu::Isa;
use backend_cpu::laurent::PlanePairs;
use fmm_families::{Facts, Place};
use fmm_kernels::equivalent::{Lattice, lattice};
use fmm_kernels::spherical;
use fmm_traits::{Error, MAX_NODES, Outputs, Policy, Precision, cores};
use std::ops::RangeInclusive;

/// Largest number of threads of a plan.
const MAX_THREADS: usize = 4096;
/// Tolerance in f64 if the caller gives neither a tolerance nor an order.
const DEFAULT_TOLERANCE: f64 = 1e-6;
/// As [`DEFAULT_TOLERANCE`], in f32.
const DEFAULT_TOLERANCE_F32: f64 = 1e-5;
/// In f32 without a tolerance, a plan takes the smallest error that its method reaches, up to this number.
const LARGEST_DEFAULT: f64 = 1e-2;
/// Opening angle of a treecode if the caller gives an order but no angle.
const GIVEN_ORDER_THETA: f64 = 0.6;
/// Opening angles that compete for a treecode with a tolerance.
const TREECODE_THETAS: [f64; 6] = [0.5, 0.6, 0.7, 0.8, 0.9, 1.0];

/// The accuracy that a request asks for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Goal {
    /// A given order, with any error.
    Order(usize),
    /// A given tolerance. Planning fails if no candidate keeps the tolerance.
    Tolerance(f64),
    /// A default tolerance, or the smallest error that the method reaches if this error is larger.
    Usual(f64),
}

impl Goal {
    /// Whether a plan may take `floor`, the smallest error that the method reaches, as its tolerance.
    pub fn accepts(self, floor: f64) -> bool {
        matches!(self, Goal::Usual(_)) && floor <= LARGEST_DEFAULT
    }
    /// The tolerance that the order must keep; `None` for a given order.
    pub fn tolerance(self) -> Option<f64> {
        match self {
            Goal::Order(_) => None,
            Goal::Tolerance(e) | Goal::Usual(e) => Some(e),
        }
    }
}

/// A checked request.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub facts: Facts,
    pub goal: Goal,
    pub isa: Isa,
    pub threads: usize,
}

/// The kind of tree, with the options of the expansions on it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Layout {
    /// An octree in space.
    Octree(Parts),
    /// A pyramid in the plane, with the θ of the criterion of separation.
    Pyramid { pairs: PlanePairs, theta: f64 },
}

/// One way to compute the sum.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    /// Never [`Method::Auto`].
    pub method: Method,
    pub layout: Layout,
    /// The orders that the expansion supports.
    pub orders: RangeInclusive<usize>,
    /// The given order, or the order that the tolerance is expected to need, which may lie between two orders.
    pub guess: f64,
    /// Assumed digits gained per order, until the probe has measured two orders.
    pub digits: f64,
    /// Mean points per leaf; in the plane the desired population.
    pub occupancy: f64,
    /// Forecast time of an evaluation on one core, or on the GPU, in seconds.
    pub seconds: f64,
    /// Name of the cost model behind the forecast.
    pub costs: String,
}

impl Candidate {
    /// The order at which the search for a tolerance begins, or the given order.
    pub fn first(&self) -> usize {
        self.guess.round() as usize
    }

    /// The candidate with another number of values of each attribute in far fields, and the forecast of before.
    pub fn with_nodes(&self, nodes: usize) -> Candidate {
        let mut other = self.clone();
        if let Layout::Octree(parts) = &mut other.layout {
            parts.grid.nodes = nodes;
        }
        other
    }
}

/// Facts about the points that are known without a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Numbers of sources and targets.
    pub counts: [usize; 2],
    /// Whether the targets are separate points, not sources.
    pub apart: bool,
    /// Largest extent of the points along an axis; 0 if unknown.
    pub extent: f64,
}

/// Checks the parts of a request that do not depend on the method.
pub(crate) fn check(r: &Fmm, counts: [usize; 2]) -> Result<Task, Error> {
    r.family.validate()?;
    check_with(r, counts, r.family.facts(r.outputs)?)
}

/// [`check`] with the facts of the family, which take longer than the rest.
pub(crate) fn check_with(r: &Fmm, counts: [usize; 2], facts: Facts) -> Result<Task, Error> {
    for (what, found) in [("sources", counts[0]), ("targets", counts[1])] {
        if found > MAX_POINTS {
            return Err(Error::TooMany { what, found, limit: MAX_POINTS });
        }
    }
    let goal = match (r.tolerance, r.order) {
        (Some(tolerance), Some(order)) => return Err(Error::ToleranceAndOrder { tolerance, order }),
        (Some(tolerance), None) if !(tolerance > 0.0 && tolerance.is_finite()) => {
            return Err(Error::Tolerance { tolerance });
        }
        (Some(tolerance), None) => Goal::Tolerance(tolerance),
        (None, Some(order)) => Goal::Order(order),
        (None, None) if r.precision == Precision::F64 => Goal::Tolerance(DEFAULT_TOLERANCE),
        (None, None) => Goal::Usual(DEFAULT_TOLERANCE_F32),
    };
    r.costs.validate()?;
    r.backend.check()?;
    if r.ncrit == Some(0) {
        return Err(Error::Parameter { name: "ncrit", value: 0.0, requirement: "must be at least 1" });
    }
    let threads = threads(r)?;
    let isa = r.backend.processor().isa().unwrap_or_else(Isa::detect);
    if !Isa::available().contains(&isa) {
        let reason = format!("this machine has no {}", isa.name());
        return Err(Error::Unsupported { operation: "the instruction set", reason });
    }
    Ok(Task { facts, goal, isa, threads })
}

/// The number of threads of a plan.
///
/// # Errors
/// [`Error::Parameter`] for a number that no plan takes.
pub(crate) fn threads(r: &Fmm) -> Result<usize, Error> {
    match r.threads {
        None => Ok(cores()),
        Some(t) if (1..=MAX_THREADS).contains(&t) => Ok(t),
        Some(t) => Err(Error::Parameter { name: "threads", value: t as f64, requirement: "must be 1 to 4096" }),
    }
}

/// The candidates for a request, the cheapest forecast first. A named method gives one candidate; a named treecode
/// gives one per opening angle.
pub(crate) fn candidates(r: &Fmm, task: &Task, seen: Seen) -> Result<Vec<Candidate>, Error> {
    let mut found = match r.family.place() {
        Place::Space => in_space(r, task, seen)?,
        Place::Plane(pairs) => in_plane(r, task, pairs, seen.counts)?,
    };
    found.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    Ok(found)
}

/// An [`Error::Unsupported`] for `operation`.
fn refuse<T>(operation: &'static str, reason: impl Into<String>) -> Result<T, Error> {
    Err(Error::Unsupported { operation, reason: reason.into() })
}

/// Digits that equivalent densities lose against the potential of charges, by the number of [`derivatives`].
const LOSS_OF_DENSITIES: [f64; 3] = [0.0, 0.6, 0.8];
/// As [`LOSS_OF_DENSITIES`], for M2L of spherical harmonics. Multipoles of treecodes lose nothing.
const LOSS_OF_HARMONICS: [f64; 3] = [0.0, 0.35, 0.45];

/// Number of derivatives of a charge potential that the outputs take, at most two. Sources of several strengths, such
/// as dipoles, count as one derivative.
fn derivatives(r: &Fmm, facts: &Facts) -> usize {
    let most = match () {
        _ if r.outputs.contains(Outputs::HESSIAN) => 2,
        _ if r.outputs.contains(Outputs::GRADIENT) || r.outputs.contains(Outputs::PRESSURE) => 1,
        _ => 0,
    };
    (most + usize::from(facts.linear() > 1)).min(2)
}

/// Convergence of an expansion: the digits gained per order, and the digits at order 0.
///
/// The search for an order measures errors, so these round numbers are only its starting point: lines through the
/// orders that searches found for tolerances of 1e-2 to 1e-10. For harmonics in a treecode they depend on the opening
/// angle θ. Equivalent densities take one line for M2L and for every θ.
pub(crate) fn convergence(parts: &Parts) -> [f64; 2] {
    match (parts.expansion, parts.policy) {
        (Expansion::Equivalent, _) => [0.89, -0.5],
        (Expansion::Interpolation, _) => [0.9, -0.4],
        (Expansion::Spherical, Policy::Treecode { theta }) => [-(0.5 * theta + 0.22 * theta * theta).log10(), theta],
        (Expansion::Spherical, _) => [0.33, 1.0],
    }
}

/// The order that a tolerance is expected to need. It may lie between two orders.
fn order_for(parts: &Parts, tolerance: f64, derivatives: usize) -> f64 {
    let [slope, start] = convergence(parts);
    let lost = match (parts.expansion, parts.policy) {
        (_, Policy::Treecode { .. }) => 0.0,
        (Expansion::Equivalent | Expansion::Interpolation, _) => LOSS_OF_DENSITIES[derivatives],
        (Expansion::Spherical, _) => LOSS_OF_HARMONICS[derivatives],
    };
    (-tolerance.log10() + lost - start) / slope
}

/// The seconds that an order between two orders is expected to take: one of the two will be needed.
pub(crate) fn expected(order: f64, seconds: impl Fn(usize) -> f64) -> f64 {
    let (below, part) = (order.floor(), order.fract());
    let at_below = seconds(below as usize);
    if part == 0.0 { at_below } else { (1.0 - part) * at_below + part * seconds(below as usize + 1) }
}

/// Estimated error of an order. It sets the distance within which pairs of a softened kernel are summed directly. The
/// estimate is on the safe side, below most errors, while [`convergence`] fits orders of measured bounds.
pub(crate) fn error_of_order(parts: &Parts, order: usize) -> f64 {
    let [slope, start] = match (parts.expansion, parts.policy) {
        (Expansion::Equivalent | Expansion::Interpolation, Policy::Treecode { theta }) => [0.5 / theta, 0.0],
        (Expansion::Equivalent | Expansion::Interpolation, _) => [0.9, 0.0],
        (Expansion::Spherical, Policy::Treecode { theta }) => [-(0.6 * theta).log10(), 2.5],
        (Expansion::Spherical, _) => [0.43, 2.0],
    };
    10f64.powf(-slope * order as f64 - start)
}

/// The orders that the expansion of a method supports.
pub(crate) fn orders(parts: &Parts) -> RangeInclusive<usize> {
    match parts.expansion.fill() {
        None => spherical::MIN_ORDER..=spherical::MAX_ORDER,
        Some(fill) => lattice::MIN_ORDER..=Lattice::max_order(fill, parts.dim),
    }
}

/// Checks that a given order is one of `orders`.
fn given(order: usize, orders: &RangeInclusive<usize>) -> Result<usize, Error> {
    let (min, max) = (*orders.start(), *orders.end());
    if orders.contains(&order) { Ok(order) } else { Err(Error::Order { order, min, max }) }
}

/// The candidates in space, and those on quadtrees in the plane: the methods on octrees that a request allows, and direct
/// summation.
fn in_space(r: &Fmm, task: &Task, seen: Seen) -> Result<Vec<Candidate>, Error> {
    let mut found = Vec::new();
    // The same order of two expansions has different errors, so expansions compete only for a tolerance.
    if r.method == Method::Auto && r.order.is_none() && task.facts.harmonic.is_ok() {
        found.extend(on_octree(r, Method::SphericalHarmonics, task, seen).ok().into_iter().flatten());
    }
    found.extend(on_octree(r, r.method, task, seen)?);
    if r.method == Method::Auto && r.order.is_none() {
        found.extend(on_octree(r, Method::Interpolation, task, seen).ok().into_iter().flatten());
        found.extend(on_octree(r, Method::Treecode, task, seen).ok().into_iter().flatten());
    }
    if r.method == Method::Auto {
        let Candidate { layout, costs, .. } = found[0].clone();
        let direct = r.backend.processor().prices(r, &task.facts).direct(seen.counts);
        found.push(direct_sum(layout, direct, costs));
    }
    Ok(found)
}

/// Direct summation as a candidate. `layout` tells space from the plane.
fn direct_sum(layout: Layout, seconds: f64, costs: String) -> Candidate {
    Candidate { method: Method::Direct, layout, orders: 0..=0, guess: 0.0, digits: 1.0, occupancy: 1.0, seconds, costs }
}

/// The candidates of `method` on an octree: one, or one per opening angle of a treecode. [`Method::Auto`] stands for
/// equivalent densities.
fn on_octree(r: &Fmm, method: Method, task: &Task, seen: Seen) -> Result<Vec<Candidate>, Error> {
    let (kernel, facts) = (r.family.name(), &task.facts);
    if method == Method::Laurent {
        return refuse("Laurent series", format!("kernel {kernel} is not one of those that have them"));
    }
    if r.norm == Norm::Max {
        return refuse("the largest relative error", format!("only kernel harmonic2d has it, {kernel} promises ℓ2"));
    }
    let processor = r.backend.processor();
    let parts = processor.complete(parts(&r.variant, method, facts.dim, &facts.harmonic)?, &r.variant)?;
    let prices = processor.prices(r, facts);
    let method = if method == Method::Auto { Method::EquivalentDensities } else { method };
    if method == Method::Direct {
        return Ok(vec![direct_sum(Layout::Octree(parts), 0.0, costs::BUILT_IN.to_string())]);
    }
    let thetas = match parts.policy {
        Policy::Treecode { theta: 0.0 } if task.goal.tolerance().is_none() => vec![GIVEN_ORDER_THETA],
        Policy::Treecode { theta: 0.0 } => TREECODE_THETAS.to_vec(),
        Policy::Treecode { theta } => vec![theta],
        _ => vec![0.0],
    };
    let orders = orders(&parts);
    let grid = Grid { nodes: nodes(r, task)?, spreads: r.attributes.spreads() };
    let mut found = Vec::new();
    for theta in thetas {
        let mut parts = Parts { grid, ..parts };
        if let Policy::Treecode { theta: chosen } = &mut parts.policy {
            *chosen = theta;
        }
        let guess = match task.goal {
            Goal::Order(order) => given(order, &orders)? as f64,
            Goal::Tolerance(e) | Goal::Usual(e) => {
                order_for(&parts, e, derivatives(r, facts)).clamp(*orders.start() as f64, *orders.end() as f64)
            }
        };
        let occupancy = prices.occupancy(&parts, guess.round() as usize);
        let seconds = expected(guess, |order| on_leaves(r, task, seen, &parts, order)[1]);
        let costs = prices.source().to_string();
        let (layout, orders, digits) = (Layout::Octree(parts), orders.clone(), convergence(&parts)[0]);
        found.push(Candidate { method, layout, orders, guess, digits, occupancy, seconds, costs });
    }
    Ok(found)
}

/// The given number of values of each attribute in far fields, or one. Where one is not enough, the search for an order
/// finds another number.
fn nodes(r: &Fmm, task: &Task) -> Result<usize, Error> {
    match r.variant.nodes {
        Some(nodes) if !(1..=MAX_NODES).contains(&nodes) => {
            Err(Error::Parameter { name: "nodes", value: nodes as f64, requirement: "must be 1 to 4" })
        }
        Some(_) if task.facts.attributes == 0 => refuse("a number of nodes", "no source has an attribute"),
        Some(nodes) => Ok(nodes),
        None => Ok(1),
    }
}

/// Mean points per leaf of a candidate at an order, and the forecast seconds of an evaluation.
pub(crate) fn forecast(r: &Fmm, task: &Task, seen: Seen, candidate: &Candidate, order: usize) -> [f64; 2] {
    match &candidate.layout {
        _ if candidate.method == Method::Direct => [candidate.occupancy, candidate.seconds],
        Layout::Octree(parts) => on_leaves(r, task, seen, parts, order),
        Layout::Pyramid { .. } => in_population(r, order, seen.counts),
    }
}

/// Mean points per leaf that balance near and far field at an order, and the forecast seconds of an evaluation.
fn on_leaves(r: &Fmm, task: &Task, seen: Seen, parts: &Parts, order: usize) -> [f64; 2] {
    let occupancy = r.backend.processor().prices(r, &task.facts).occupancy(parts, order);
    [occupancy, in_a_cube(r, task, seen, parts, order, occupancy)]
}

/// Forecast seconds of an evaluation at an order for points that fill a cube evenly, with so many points per leaf unless the
/// caller has given a number.
pub(crate) fn in_a_cube(r: &Fmm, task: &Task, seen: Seen, parts: &Parts, order: usize, occupancy: f64) -> f64 {
    let leaf = r.ncrit.map_or(occupancy, |k| (k as f64 / 3.0).max(1.0)).max(crowd(r, task.goal, seen));
    r.backend.processor().prices(r, &task.facts).forecast(parts, order, leaf, seen.counts)
}

/// The desired population of boxes of a pyramid at an order, and the forecast seconds of an evaluation.
fn in_population(r: &Fmm, order: usize, counts: [usize; 2]) -> [f64; 2] {
    let prices = r.backend.processor().prices_of_plane();
    [r.ncrit.map_or(prices.population(order), |k| k as f64), prices.fast(order, counts)]
}

/// Number of points in a box as large as the near radius of a softened kernel. No box is smaller than that radius.
fn crowd(r: &Fmm, goal: Goal, seen: Seen) -> f64 {
    let core = r.family.near_radius(goal.tolerance().unwrap_or(f64::INFINITY));
    if core > 0.0 && seen.extent > 0.0 {
        let [n, m] = seen.counts;
        n.max(m) as f64 * (core / seen.extent).min(1.0).powi(r.family.dim() as i32)
    } else {
        0.0
    }
}

/// The candidates of a kernel of the plane: Laurent series on a pyramid, and direct summation.
fn in_plane(r: &Fmm, task: &Task, pairs: PlanePairs, counts: [usize; 2]) -> Result<Vec<Candidate>, Error> {
    let (name, v) = (r.family.name(), &r.variant);
    let processor = r.backend.processor();
    processor.has_plane(r.precision)?;
    let prices = processor.prices_of_plane();
    if !matches!(r.method, Method::Auto | Method::Laurent | Method::Direct) {
        return refuse("a method of space", format!("kernel {name} has Laurent series"));
    }
    let of_space = [v.translation.is_some(), v.truncation.is_some(), v.lists.is_some(), v.expansion.is_some()];
    if of_space.contains(&true) || v.nodes.is_some() {
        return refuse("a variant", format!("kernel {name} has one method, by Laurent series"));
    }
    if r.norm == Norm::Max && !pairs.complex() {
        return refuse("the largest relative error", format!("potentials of kernel {name} pass through 0"));
    }
    if r.root.is_some() {
        return refuse("a root cube", "boxes of the plane are shrunk to their points");
    }
    if r.method == Method::Direct && v.theta.is_some() {
        return refuse("θ", "direct summation separates no boxes");
    }
    if r.norm == Norm::Max && r.order.is_some() {
        return refuse("a norm", "it belongs to a tolerance, and an order was given");
    }
    let theta = v.theta.unwrap_or(costs::PLANE_THETA);
    if !(theta > 0.0 && theta < 1.0) {
        return Err(Error::Parameter { name: "theta", value: theta, requirement: "must lie between 0 and 1" });
    }
    let orders = 1..=laurent::MAX_ORDER;
    let first = match task.goal {
        Goal::Order(order) => given(order, &orders)?,
        // Errors fall like θ^p (Engblom 2011).
        Goal::Tolerance(e) | Goal::Usual(e) => (e.ln() / theta.ln()).ceil().clamp(1.0, 60.0) as usize,
    };
    let (layout, costs) = (Layout::Pyramid { pairs, theta }, costs::BUILT_IN.to_string());
    let direct = direct_sum(layout, prices.direct(counts), costs.clone());
    let [occupancy, seconds] = in_population(r, first, counts);
    let guess = first as f64;
    let fast =
        Candidate { method: Method::Laurent, layout, orders, guess, digits: -theta.log10(), occupancy, seconds, costs };
    Ok(match r.method {
        Method::Direct => vec![direct],
        Method::Laurent => vec![fast],
        _ => vec![fast, direct],
    })
}
