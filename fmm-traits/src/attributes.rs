//! Attributes of sources in far fields.
//!
//! A source may have a number e of its own, an attribute, in which the kernel is not linear, such as the radius of a
//! regularised Stokeslet. The densities of a box stand for many sources, and have the field of one value. One value is
//! enough where the field outside a box hardly depends on the attribute. Otherwise there are several values e₁ … e_m, the
//! [`Nodes`], and a far field for each of them. A source of strength q takes part in all of them:
//!
//! K(r; e) q ≈ Σₖ K(r; eₖ) Lₖ(e) q
//!
//! with Lagrange's polynomials Lₖ. Far field k has sources of the value eₖ and of strengths Lₖ(e) q. So it errs as a sum
//! without attributes does, and the error of interpolation, which does not depend on the order, is added.
//!
//! Polynomials are taken in a power of the attribute, the one that suits the kernel best ([`Spread::of`]).

use crate::kernel::MAX_COMPONENTS;
use crate::member::{Kernels, Member};

/// Largest number of nodes of an attribute.
pub const MAX_NODES: usize = 4;

/// The powers of an attribute in which polynomials are tried. Fields are even in a radius, and those of a wide Gaussian
/// hardly depend on a negative power of its width.
const POWERS: [i32; 4] = [1, 2, -1, -2];
/// Nodes with which a power is tried.
const TRIED_NODES: usize = 3;
/// Values of an attribute at which a power is tried, beside the smallest and the largest.
const TRIED_VALUES: usize = 7;
/// Relative error below which fields of one value serve all values.
const NEGLIGIBLE: f64 = 1e-12;
/// Directions in which a power is tried.
const DIRECTIONS: [[f64; 3]; 2] = [[0.62, -0.54, 0.57], [-0.28, 0.95, 0.14]];

/// How the values of an attribute spread, and a power of the attribute in which polynomials suit the kernel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// The number of the attribute.
    attribute: usize,
    power: i32,
    /// Whether nodes are negative.
    negative: bool,
    /// The smallest and the largest t = eᵖ of the values e; p is `power`.
    range: [f64; 2],
}

impl Spread {
    /// The spread of the `values` e of attribute number `attribute`, with the power p for which interpolation in eᵖ
    /// between three nodes errs least. The kernel is compared at `distances`, each half of the one before.
    /// `None` if fields of one value serve all values: they are equal, or enter the kernel as a factor.
    pub fn of(kernels: &Kernels, attribute: usize, values: &[f64], distances: &[f64]) -> Option<Self> {
        let (low, high) = values.iter().fold((f64::INFINITY, -f64::INFINITY), |(a, b), &e| (a.min(e), b.max(e)));
        if low >= high {
            return None;
        }
        let some = values.iter().step_by(values.len().div_ceil(TRIED_VALUES)).copied();
        let tried: Vec<f64> = [low, high].into_iter().chain(some).collect();
        let trial = Trial::new(kernels, attribute, &tried, distances);
        if trial.proportional() {
            return None;
        }
        let mixed = low <= 0.0 && high >= 0.0;
        let of_power = |&power: &i32| {
            let powers = values.iter().map(|e| e.powi(power));
            let range = powers.fold([f64::INFINITY, -f64::INFINITY], |[a, b], t| [a.min(t), b.max(t)]);
            let spread = Spread { attribute, power, negative: -low > high, range };
            (trial.error(&spread, TRIED_NODES), spread)
        };
        let spreads = POWERS.iter().filter(|power| **power > 0 || !mixed).map(of_power);
        spreads.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, spread)| spread)
    }

    /// The value of the attribute whose power is `t`.
    fn value(&self, t: f64) -> f64 {
        let size = if self.power < 0 { 1.0 / t } else { t };
        match self.power.abs() {
            1 => size,
            _ if self.negative => -size.sqrt(),
            _ => size.sqrt(),
        }
    }

    /// Chebyshev's points of the range.
    fn points(&self, count: usize) -> Vec<f64> {
        let [low, high] = self.range;
        let angle = |k: usize| std::f64::consts::PI * (2 * k + 1) as f64 / (2 * count) as f64;
        (0..count).map(|k| 0.5 * (low + high) - 0.5 * (high - low) * angle(k).cos()).collect()
    }
}

/// What one attribute contributes to the [`weight`] of a source in a far field: Lagrange's polynomial of a node.
#[derive(Clone, PartialEq, Debug)]
pub struct Factor {
    /// The number of the attribute.
    pub attribute: usize,
    /// The value of the attribute in the far field.
    pub value: f64,
    /// The power p: the polynomial is one in t = eᵖ, where e is the attribute of a source.
    pub power: i32,
    /// The zeros of the polynomial: the t of the other nodes.
    pub zeros: Vec<f64>,
    /// The factor of the product ∏ (t − zero), which makes the polynomial 1 at the node.
    pub scale: f64,
}

impl Factor {
    /// The factor of node `k` among the `points` of a spread.
    fn new(spread: &Spread, points: &[f64], k: usize) -> Self {
        let zeros: Vec<f64> = (0..points.len()).filter(|other| *other != k).map(|other| points[other]).collect();
        let scale = zeros.iter().map(|x| 1.0 / (points[k] - x)).product();
        Factor { attribute: spread.attribute, value: spread.value(points[k]), power: spread.power, zeros, scale }
    }

    /// The factor of a source whose attribute is `e`.
    pub fn of(&self, e: f64) -> f64 {
        let t = e.powi(self.power);
        self.zeros.iter().map(|x| t - x).product::<f64>() * self.scale
    }
}

/// The weight of a source in a far field, which has these `factors`: their product at the attributes of the source.
/// `attribute(a)` is attribute number a. The weights of a source in all far fields add up to 1.
pub fn weight(factors: &[Factor], attribute: impl Fn(usize) -> f64) -> f64 {
    factors.iter().map(|factor| factor.of(attribute(factor.attribute))).product()
}

/// Fields of sources with some values of an attribute.
struct Trial<'a> {
    kernel: &'a Member,
    params: &'a [f64],
    attribute: usize,
    distances: &'a [f64],
    tried: &'a [f64],
    /// The field of each of the values tried.
    fields: Vec<Vec<f64>>,
    /// For each number of a field, its distance cubed: as many pairs of points are about so far apart.
    volumes: Vec<f64>,
}

impl<'a> Trial<'a> {
    fn new(kernels: &'a Kernels, attribute: usize, tried: &'a [f64], distances: &'a [f64]) -> Self {
        let (kernel, params) = (&kernels.members.check, &kernels.params[..]);
        let mut trial = Trial { kernel, params, attribute, distances, tried, fields: Vec::new(), volumes: Vec::new() };
        trial.fields = tried.iter().map(|&e| trial.field(e)).collect();
        let entries = trial.fields[0].len() / distances.len();
        trial.volumes = distances.iter().flat_map(|d| std::iter::repeat_n(d.powi(3), entries)).collect();
        trial
    }

    /// All entries of the kernel at all distances, for one value of the attribute and usual values of the others.
    fn field(&self, value: f64) -> Vec<f64> {
        let kernel = self.kernel;
        let linear = kernel.linear();
        let (mut strengths, mut values) = (vec![0.0; kernel.strengths], [0.0; MAX_COMPONENTS]);
        strengths[linear..].copy_from_slice(&kernel.attributes);
        strengths[linear + self.attribute] = value;
        let mut field = Vec::new();
        for (distance, direction) in self.distances.iter().flat_map(|d| DIRECTIONS.map(|e| (d, e))) {
            for j in 0..linear {
                strengths[j] = 1.0;
                kernel.eval(self.params, &direction.map(|x| x * distance), &strengths, &mut values[..kernel.values]);
                strengths[j] = 0.0;
                field.extend_from_slice(&values[..kernel.values]);
            }
        }
        field
    }

    /// The square of a field, over all shells.
    fn square(&self, field: impl Iterator<Item = f64>) -> f64 {
        field.zip(&self.volumes).map(|(x, volume)| volume * x * x).sum()
    }

    /// Whether the fields of all values tried are multiples of the first.
    fn proportional(&self) -> bool {
        let first = &self.fields[0];
        let largest = |field: &[f64]| field.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        let is_multiple = |field: &Vec<f64>| {
            let both = first.iter().zip(field).zip(&self.volumes);
            let factor = both.map(|((a, b), volume)| volume * a * b).sum::<f64>() / self.square(first.iter().copied());
            let error = first.iter().zip(field).map(|(a, b)| (b - factor * a).abs()).fold(0.0, worse);
            error <= NEGLIGIBLE * largest(field)
        };
        self.fields.iter().all(is_multiple)
    }

    /// The relative error of fields that are interpolated between `count` nodes, over all shells and values tried;
    /// infinite if there is none.
    fn error(&self, spread: &Spread, count: usize) -> f64 {
        let points = spread.points(count);
        let factors: Vec<Factor> = (0..count).map(|k| Factor::new(spread, &points, k)).collect();
        let nodes: Vec<Vec<f64>> = factors.iter().map(|factor| self.field(factor.value)).collect();
        let of_value = |(&e, field): (&f64, &Vec<f64>)| {
            let weights: Vec<f64> = factors.iter().map(|factor| factor.of(e)).collect();
            let of_entry = |(i, x): (usize, &f64)| {
                weights.iter().zip(&nodes).map(|(weight, node)| weight * node[i]).sum::<f64>() - x
            };
            self.square(field.iter().enumerate().map(of_entry))
        };
        let errors: f64 = self.tried.iter().zip(&self.fields).map(of_value).sum();
        let squares: f64 = self.fields.iter().map(|field| self.square(field.iter().copied())).sum();
        worse(0.0, (errors / squares).sqrt())
    }
}

/// The larger of two errors; infinite if one is not a number.
fn worse(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::INFINITY } else { a.max(b) }
}

/// One attribute of a grid of nodes.
#[derive(Clone, PartialEq, Debug)]
struct Axis {
    spread: Spread,
    /// The parameter that is the attribute.
    parameter: usize,
    /// The t = eᵖ of the nodes.
    points: Vec<f64>,
}

/// Values of attributes at which far fields are expanded: a grid of Chebyshev's points. Without attributes, and where
/// one value serves all, there is one node: the parameters as they are.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Nodes(Vec<Axis>);

impl Nodes {
    /// The grid of `count` nodes in each of `spreads`. One node is the usual values of the attributes, the
    /// parameters of `kernels`.
    pub fn of(kernels: &Kernels, spreads: &[Spread], count: usize) -> Self {
        let axis = |&spread: &Spread| Axis {
            spread,
            parameter: kernels.attributes[spread.attribute],
            points: spread.points(count),
        };
        Nodes(spreads.iter().filter(|_| count > 1).map(axis).collect())
    }

    /// Number of nodes, at least 1.
    pub fn count(&self) -> usize {
        self.0.iter().map(|axis| axis.points.len()).product()
    }

    /// The factors of the [`weight`] of a source in far field `k`, one for each attribute of the grid. An attribute
    /// without a factor is not one of the grid: each source keeps its own there.
    pub fn factors(&self, mut k: usize) -> Vec<Factor> {
        let of_axis = |axis: &Axis| {
            let place = k % axis.points.len();
            k /= axis.points.len();
            Factor::new(&axis.spread, &axis.points, place)
        };
        self.0.iter().map(of_axis).collect()
    }

    /// The parameters of node `k`: `params` with the values of its attributes.
    pub fn parameters(&self, params: &[f64], k: usize) -> Vec<f64> {
        let mut params = params.to_vec();
        self.0.iter().zip(self.factors(k)).for_each(|(axis, factor)| params[axis.parameter] = factor.value);
        params
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Outputs, Traced};

    const DISTANCES: [f64; 4] = [0.5, 0.25, 0.125, 0.0625];

    fn kernels(text: &str, attributes: &[(&str, f64)]) -> Kernels {
        let set = |kernel: Traced, (name, value): &(&str, f64)| kernel.set(name, *value)?.attribute(name);
        let kernel = Traced::parse(text).unwrap();
        attributes.iter().try_fold(kernel, set).unwrap().kernels(Outputs::POTENTIAL).unwrap()
    }

    fn values(low: f64, high: f64) -> Vec<f64> {
        (0..50).map(|k| low + (high - low) * k as f64 / 49.0).collect()
    }

    const SOFTENED: &str = "parameter e\nparameter a = 1\nvalue a/sqrt(r^2 + e^2)";
    const GAUSSIAN: &str = "parameter s\nvalue exp(-r^2/(2*s^2))";

    #[test]
    fn polynomials_are_in_the_power_that_suits_the_kernel() {
        for (text, name, range, powers) in [
            (SOFTENED, "e", [0.01, 0.03], &[2][..]),
            (SOFTENED, "e", [-0.03, 0.02], &[2]),
            (GAUSSIAN, "s", [0.3, 0.9], &[-1, -2]),
            ("parameter k\nvalue exp(-k*r)/r", "k", [1.0, 3.0], &[1]),
        ] {
            let kernels = kernels(text, &[(name, 0.5 * (range[0] + range[1]))]);
            let spread = Spread::of(&kernels, 0, &values(range[0], range[1]), &DISTANCES).unwrap();
            assert!(powers.contains(&spread.power), "{text} {range:?} {spread:?}");
            let tried = values(range[0], range[1]);
            let trial = Trial::new(&kernels, 0, &tried, &DISTANCES);
            let errors: Vec<f64> = (1..=MAX_NODES).map(|m| trial.error(&spread, m)).collect();
            assert!(errors.windows(2).all(|e| e[1] < 0.5 * e[0]), "{text} {spread:?} {errors:?}");
        }
    }

    #[test]
    fn one_value_serves_where_fields_are_multiples() {
        let kernels = kernels(SOFTENED, &[("e", 0.02), ("a", 1.0)]);
        let spread = |attribute, values: &[f64]| Spread::of(&kernels, attribute, values, &DISTANCES);
        assert!(spread(1, &values(1.0, 3.0)).is_none() && spread(0, &[0.02; 9]).is_none());
        assert!(spread(0, &[0.02, -0.02, 0.02]).is_none() && spread(0, &values(0.01, 0.03)).is_some());
    }

    /// Fields of the nodes of a grid with two attributes, times the parts of a source, are the field of the source.
    #[test]
    fn parts_of_nodes_make_up_a_source() {
        let text = "parameter e\nparameter k\nvalue exp(-k*r)/sqrt(r^2 + e^2)";
        let kernels = kernels(text, &[("e", 0.02), ("k", 2.0)]);
        let spreads: Vec<Spread> = [(0, [-0.03, -0.01]), (1, [1.0, 3.0])]
            .map(|(a, [low, high])| Spread::of(&kernels, a, &values(low, high), &DISTANCES).unwrap())
            .into();
        assert_eq!(Nodes::of(&kernels, &spreads, 1), Nodes::default());
        for (count, bound) in [(2, 5e-3), (3, 5e-4), (4, 5e-5)] {
            let nodes = Nodes::of(&kernels, &spreads, count);
            assert_eq!(nodes.count(), count * count);
            let own = [-0.013, 2.7];
            let (mut sum, mut parts) = (0.0, 0.0);
            let (mut value, far) = ([0.0], &kernels.far);
            for k in 0..nodes.count() {
                let factors = nodes.factors(k);
                let part = weight(&factors, |a| own[a]);
                let params = nodes.parameters(&kernels.params, k);
                assert_eq!([0, 1].map(|a| (factors[a].attribute, factors[a].value)), [(0, params[0]), (1, params[1])]);
                assert!(params[0] < 0.0, "{params:?}");
                far.eval(&params, &[0.1, 0.05, 0.0], &[1.0], &mut value);
                (sum, parts) = (sum + part * value[0], parts + part);
            }
            kernels.near.eval(&kernels.params, &[0.1, 0.05, 0.0], &[1.0, own[0], own[1]], &mut value);
            let error = (sum / value[0] - 1.0).abs();
            assert!((parts - 1.0).abs() < 1e-13 && error < bound, "{count}: {parts} {error:e}");
        }
    }
}
