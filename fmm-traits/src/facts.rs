//! Checks of the facts that kernels state about themselves. A plan tries each fact on a few pairs of points, in
//! microseconds, because all operators, symmetries and transposes rest on the facts.
//!
//! Let K(p, r) be the matrix of a kernel under parameters p, with one row per value and one column per strength. The
//! checks are
//!
//! | fact | identity |
//! |---|---|
//! | finite values | every entry of K(p, r) is finite for r ≠ 0 |
//! | linearity | K(p, r)·q = Σ_j q_j K(p, r)·e_j for strengths q of either sign, large and small |
//! | `SINGULAR` | K(p, 0) = 0 exactly if singular, finite if not |
//! | `value_degree`, `strength_degree`, `dilated` | K(p, hr)\[i\]\[j\] = h^(v_i + s_j) K(dilated(p, h), r)\[i\]\[j\] |
//! | `RECIPROCAL` | K(p, −r) = K(p, r)ᵀ |
//! | `eval_gradient`, `eval_hessian` | values of `eval`; slopes (u(r + δe_a) − u(r − δe_a))/2δ |
//!
//! # Where
//!
//! A fact has to hold where a plan uses the kernel. Points that span L have separations up to √3 L. The tried pairs
//! have lengths from L/1000 to 1.6 L, in directions that no symmetry maps to each other. A kernel may also change at
//! lengths that its parameters set. For each parameter x, finite values and dilation are tried at about the lengths x
//! and 1/x too, if these lengths are within L. Derivatives are tried at every third pair.
//!
//! # How closely
//!
//! Dilations are by h = 1/2 and 1/8. Products with powers of two are exact. A true identity therefore holds to the last
//! bits even for a kernel that varies fast, and a cut-off is met on both sides of the identity or on neither. Entries
//! are compared relative to the largest entry of their row. Rows that underflow are left out. No single step of a
//! difference fits all kernels, so several steps are tried; a right gradient agrees with one of the differences.
//!
//! Nothing here is compiled per kernel: all evaluations go through the pointers of a [`Member`].

use crate::kernel::{DERIVATIVE_FACTORS, Family, MAX_PARAMETERS};
use crate::{Error, Member};

/// Lengths of pairs, in units of the extent of the points.
const PAIR_LENGTHS: [f64; 12] = [1.6, 1.1, 0.8, 0.55, 0.34, 0.21, 0.12, 0.06, 0.03, 0.015, 5e-3, 1e-3];
/// Lengths of pairs in units of a parameter or its inverse.
const NEAR_PARAMETER: [f64; 2] = [0.7, 1.6];
/// Range of the tried lengths near parameters, in units of the extent.
const TRIED_LENGTHS: [f64; 2] = [1e-9, 1.7];
/// Shortest length, in units of the extent, at which a value must be finite. Values of shorter pairs may overflow.
const FINITE_FROM: f64 = 1e-2;
/// Extents of points for which a kernel is tried in the caller's units.
const USUAL_EXTENTS: [f64; 2] = [1e-20, 1e20];
/// Factors of dilations, powers of two.
const DILATIONS: [f64; 2] = [0.5, 0.125];
/// Largest difference between the sides of an identity, relative to the row.
const IDENTITY_TOLERANCE: f64 = 1e-9;
/// Largest relative difference from linearity. It is larger than [`IDENTITY_TOLERANCE`] because a kernel may multiply
/// terms by a strength and then cancel them.
const LINEARITY_TOLERANCE: f64 = 1e-5;
/// Steps of finite differences, in units of the length of a pair.
const DIFFERENCE_STEPS: [f64; 3] = [1e-3, 1e-5, 1e-7];
/// Largest difference between a derivative and a finite difference, relative to the gradient.
const SLOPE_TOLERANCE: f64 = 1e-4;
/// Relative rounding error of a value in a finite difference.
const VALUE_ROUNDING: f64 = 1e-13;
/// A row whose largest entry is smaller may have lost digits by underflow.
const UNDERFLOW: f64 = 1e-280;
/// Derivatives are tried at every third pair.
const DERIVATIVE_STRIDE: usize = 3;

/// Checks the parameters of a family and their number.
///
/// # Errors
/// Errors of [`Family::validate`]; [`Error::TooMany`] for more than [`MAX_PARAMETERS`] parameters.
pub fn validate<F: Family>(family: &F) -> Result<(), Error> {
    family.validate()?;
    count(&family.parameters())
}

/// An error for more parameters than the arrays of the backends hold.
fn count(params: &[f64]) -> Result<(), Error> {
    if params.len() > MAX_PARAMETERS {
        return Err(Error::TooMany { what: "parameters of a kernel", found: params.len(), limit: MAX_PARAMETERS });
    }
    Ok(())
}

/// Tries the facts of each of `members`, under the parameters `params`, at separations of points that span `extent` (0:
/// unknown, taken as 1). A kernel that occurs twice is tried once.
///
/// # Errors
/// [`Error::Fact`] with the first fact that does not hold; [`Error::TooMany`] parameters.
pub fn check(members: &[Member], params: &[f64], extent: f64) -> Result<(), Error> {
    count(params)?;
    let extent = if extent > 0.0 { extent } else { 1.0 };
    // Powers of lengths overflow beyond the usual extents. Backends compute in units of the points, and so does the
    // check there.
    let unit = if (USUAL_EXTENTS[0]..=USUAL_EXTENTS[1]).contains(&extent) { 1.0 } else { extent.log2().round().exp2() };
    let usual = pairs(params, extent);
    for (k, member) in members.iter().enumerate() {
        if members[..k].iter().any(|other| other.id == member.id) {
            continue;
        }
        if unit == 1.0 {
            Trial { member, params, attributes: member.attributes.clone() }.run(&usual, extent)?;
            continue;
        }
        let (inside, extent) = (member.unit_parameters(params, unit), extent / unit);
        let attributes = dilated_attributes(member, &member.attributes, unit);
        Trial { member, params, attributes: Vec::new() }.keeps_count(&inside, unit)?;
        Trial { member, params: &inside, attributes }.run(&pairs(&inside, extent), extent)?;
    }
    Ok(())
}

/// The separations at which a kernel is tried, for points that span `extent`.
fn pairs(params: &[f64], extent: f64) -> Vec<[f64; 3]> {
    let mut lengths: Vec<f64> = PAIR_LENGTHS.iter().map(|x| x * extent).collect();
    for p in params {
        for length in [p.abs(), 1.0 / p.abs()] {
            let near = NEAR_PARAMETER.map(|x| x * length).into_iter();
            lengths.extend(near.filter(|x| (TRIED_LENGTHS[0]..=TRIED_LENGTHS[1]).contains(&(x / extent))));
        }
    }
    let count = lengths.len() as f64;
    let direction = |k: f64| {
        // The directions lie on a spiral from pole to pole in steps of the golden angle, off the poles and the equator.
        // A kernel of the plane sees their shadows.
        let z = 1.0 - (2.0 * k + 0.9) / count;
        let (rho, turn) = ((1.0 - z * z).sqrt(), 2.399963 * k + 0.4);
        [rho * turn.cos(), rho * turn.sin(), z]
    };
    lengths.iter().enumerate().map(|(k, length)| direction(k as f64).map(|x| x * length)).collect()
}

/// The matrix K(p, r): the entry of value `i` and strength `j` is at `values·j + i`.
struct Matrix {
    values: usize,
    entries: Vec<f64>,
}

impl Matrix {
    fn at(&self, i: usize, j: usize) -> f64 {
        self.entries[self.values * j + i]
    }
    fn row(&self, i: usize) -> impl Iterator<Item = f64> {
        self.entries.iter().skip(i).step_by(self.values).copied()
    }
    fn column(&self, j: usize) -> &[f64] {
        &self.entries[self.values * j..][..self.values]
    }
}

/// The largest magnitude; NaN if a number is NaN.
fn largest(x: impl IntoIterator<Item = f64>) -> f64 {
    x.into_iter().fold(0.0, |most: f64, x| if x.is_nan() || most.is_nan() { f64::NAN } else { most.max(x.abs()) })
}

/// Whether two numbers differ by more than `tolerance`. NaN differs from every number.
fn differ(a: f64, b: f64, tolerance: f64) -> bool {
    (a - b).abs().partial_cmp(&tolerance).is_none_or(|order| order.is_gt())
}

/// Strengths for pair `k`, of both signs. Their size varies from pair to pair.
fn strengths(k: usize, count: usize) -> Vec<f64> {
    let size = [1.0, -37.0, 0.02][k % 3];
    (0..count).map(|j| size * [0.83, -0.61, 1.27, -0.45, 0.94][j % 5]).collect()
}

/// The attributes of a source after a dilation by `h`.
fn dilated_attributes(member: &Member, attributes: &[f64], h: f64) -> Vec<f64> {
    let degrees = &member.strength_degrees[member.linear()..];
    attributes.iter().zip(degrees).map(|(x, &degree)| x * h.powi(degree)).collect()
}

/// A kernel under the parameters of a plan.
struct Trial<'a> {
    member: &'a Member,
    params: &'a [f64],
    attributes: Vec<f64>,
}

impl Trial<'_> {
    /// Tries all facts at all `pairs`, the simple facts first.
    fn run(&self, pairs: &[[f64; 3]], extent: f64) -> Result<(), Error> {
        let mut tried = Vec::with_capacity(pairs.len());
        for (k, &r) in pairs.iter().enumerate() {
            let matrix = self.matrix(self.params, &self.attributes, r);
            if self.finite(&matrix, r, extent)? {
                tried.push((k, r, matrix));
            }
        }
        // Pairs at lengths of parameters are only for dilation: far below the other lengths a kernel may have cancelled
        // its digits.
        let usual = || tried.iter().take_while(|(k, ..)| *k < PAIR_LENGTHS.len());
        usual().try_for_each(|(k, r, matrix)| self.linear(*k, *r, matrix))?;
        self.at_zero()?;
        for h in DILATIONS {
            let dilated = self.member.unit_parameters(self.params, h);
            self.keeps_count(&dilated, h)?;
            tried.iter().try_for_each(|(_, r, _)| self.dilation(&dilated, h, *r))?;
        }
        if self.member.reciprocal {
            usual().try_for_each(|(_, r, matrix)| self.reciprocity(*r, matrix))?;
        }
        if self.member.derived > 0 {
            let some = usual().step_by(DERIVATIVE_STRIDE);
            some.map(|(k, r, _)| (*k, *r)).try_for_each(|(k, r)| self.derivatives(k, r))?;
        }
        Ok(())
    }

    fn wrong(&self, fact: &'static str, stated: String, r: [f64; 3], expected: f64, found: f64) -> Error {
        Error::Fact { kernel: self.member.name.clone(), fact, stated, r, expected, found }
    }

    fn keeps_count(&self, dilated: &[f64], h: f64) -> Result<(), Error> {
        if dilated.len() == self.params.len() {
            return Ok(());
        }
        let stated = format!("the number of parameters after a dilation by {h}");
        let [expected, found] = [self.params.len(), dilated.len()].map(|n| n as f64);
        Err(self.wrong("dilated", stated, [0.0; 3], expected, found))
    }

    /// Strengths for pair `k`, with the attributes.
    fn strengths(&self, k: usize) -> Vec<f64> {
        let mut q = strengths(k, self.member.linear());
        q.extend(&self.attributes);
        q
    }

    fn values(&self, params: &[f64], r: [f64; 3], strengths: &[f64]) -> Vec<f64> {
        let mut values = vec![0.0; self.member.values];
        self.member.eval(params, &r, strengths, &mut values);
        values
    }

    fn matrix(&self, params: &[f64], attributes: &[f64], r: [f64; 3]) -> Matrix {
        let (values, count) = (self.member.values, self.member.linear());
        let (mut entries, mut unit) = (vec![0.0; values * count], vec![0.0; count]);
        unit.extend(attributes);
        for (j, column) in entries.chunks_exact_mut(values).enumerate() {
            unit[j] = 1.0;
            self.member.eval(params, &r, &unit, column);
            unit[j] = 0.0;
        }
        Matrix { values, entries }
    }

    /// Whether all entries are finite. Entries of a short pair may overflow; the pair is then left out.
    fn finite(&self, matrix: &Matrix, r: [f64; 3], extent: f64) -> Result<bool, Error> {
        let Some(k) = matrix.entries.iter().position(|x| !x.is_finite()) else { return Ok(true) };
        let length = r.iter().map(|x| x * x).sum::<f64>().sqrt();
        if length < FINITE_FROM * extent {
            return Ok(false);
        }
        let (i, j) = (k % matrix.values, k / matrix.values);
        let stated = format!("value {i} of strength {j} away from r = 0");
        Err(self.wrong("a finite value", stated, r, 0.0, matrix.entries[k]))
    }

    fn linear(&self, k: usize, r: [f64; 3], matrix: &Matrix) -> Result<(), Error> {
        let q = self.strengths(k);
        let found = self.values(self.params, r, &q);
        for (i, &found) in found.iter().enumerate() {
            let terms = || matrix.row(i).zip(&q).map(|(x, q)| x * q);
            let (expected, size) = (terms().sum(), largest(terms()).max(found.abs()));
            if (size > UNDERFLOW || size.is_nan()) && differ(expected, found, LINEARITY_TOLERANCE * size) {
                let stated = format!("value {i} of strengths {q:?} from the values of each alone");
                return Err(self.wrong("linearity in the strengths", stated, r, expected, found));
            }
        }
        Ok(())
    }

    fn at_zero(&self) -> Result<(), Error> {
        let zero = [0.0; 3];
        let (q, singular) = (self.strengths(0), self.member.singular);
        let values = self.values(self.params, zero, &q);
        // Derivatives of a kernel with a narrow core may overflow where the kernel does not.
        let held = if singular { values.len() } else { values.len() / DERIVATIVE_FACTORS[self.member.derived] };
        let wrong = values[..held].iter().position(|&x| if singular { x != 0.0 } else { !x.is_finite() });
        wrong.map_or(Ok(()), |i| {
            let what = if singular { "exactly 0" } else { "a finite number" };
            let stated = format!("SINGULAR = {singular} (value {i} is {what})");
            Err(self.wrong("SINGULAR", stated, zero, 0.0, values[i]))
        })
    }

    /// Checks the rule of the module [`kernel`](crate::kernel).
    fn dilation(&self, dilated: &[f64], h: f64, r: [f64; 3]) -> Result<(), Error> {
        let (found, unit) = (
            self.matrix(self.params, &self.attributes, r.map(|x| h * x)),
            self.matrix(dilated, &dilated_attributes(self.member, &self.attributes, h), r),
        );
        let degree = |i, j| self.member.value_degrees[i] + self.member.strength_degrees[j];
        for i in 0..self.member.values {
            let expected = |j: usize| h.powi(degree(i, j)) * unit.at(i, j);
            let size = largest(found.row(i));
            // A short pair may overflow.
            if !size.is_finite() || size.max(largest(unit.row(i))) < UNDERFLOW {
                continue;
            }
            let size = size.max(largest((0..self.member.linear()).map(expected)));
            let wrong = |j: &usize| differ(expected(*j), found.at(i, *j), IDENTITY_TOLERANCE * size);
            let Some(j) = (0..self.member.linear()).find(wrong) else { continue };
            let [v, s] = [self.member.value_degrees[i], self.member.strength_degrees[j]];
            let power = (found.at(i, j) / unit.at(i, j)).ln() / h.ln();
            let fact = match () {
                // The values fit another degree.
                _ if (power - power.round()).abs() < 1e-6 && (0..self.member.linear()).all(|j| wrong(&j)) => {
                    "value_degree"
                }
                _ if (power - power.round()).abs() < 1e-6 => "strength_degree",
                _ => "dilated",
            };
            let stated = format!(
                "value_degree({i}) = {v} with strength_degree({j}) = {s} and parameters {:?} dilated by {h} to {dilated:?}",
                self.params
            );
            return Err(self.wrong(fact, stated, r.map(|x| h * x), expected(j), found.at(i, j)));
        }
        Ok(())
    }

    fn reciprocity(&self, r: [f64; 3], matrix: &Matrix) -> Result<(), Error> {
        if self.member.values != self.member.linear() {
            let stated = "RECIPROCAL = true (as many values as strengths)".to_string();
            let [expected, found] = [self.member.linear(), self.member.values].map(|n| n as f64);
            return Err(self.wrong("RECIPROCAL", stated, r, expected, found));
        }
        let opposite = r.map(|x| -x);
        let back = self.matrix(self.params, &self.attributes, opposite);
        for i in 0..self.member.values {
            let size = largest(back.row(i).chain(matrix.column(i).iter().copied()));
            for j in 0..self.member.linear() {
                let (expected, found) = (matrix.at(j, i), back.at(i, j));
                if size > UNDERFLOW && differ(expected, found, IDENTITY_TOLERANCE * size) {
                    let stated = format!("RECIPROCAL = true (value {i} of strength {j} as value {j} of {i} at -r)");
                    return Err(self.wrong("RECIPROCAL", stated, opposite, expected, found));
                }
            }
        }
        Ok(())
    }

    /// Checks that values that come with derivatives equal the values of `eval`, and that derivatives are slopes.
    fn derivatives(&self, k: usize, r: [f64; 3]) -> Result<(), Error> {
        let fact = ["eval", "eval_gradient", "eval_hessian"][self.member.derived];
        let n = self.member.values / DERIVATIVE_FACTORS[self.member.derived];
        let q = self.strengths(k);
        let (mut plain, here) = (vec![0.0; n], self.values(self.params, r, &q));
        self.member.underived(self.params, &r, &q, &mut plain);
        let size = largest(plain.iter().copied());
        for (i, (&expected, &found)) in plain.iter().zip(&here).enumerate() {
            if size > UNDERFLOW && differ(expected, found, IDENTITY_TOLERANCE * size) {
                return Err(self.wrong(fact, format!("value {i} of eval"), r, expected, found));
            }
        }
        let mut first = Ok(());
        for step in DIFFERENCE_STEPS {
            let slopes = self.slopes(fact, step, r, &q, &here, n);
            if slopes.is_ok() {
                return Ok(());
            }
            first = first.and(slopes);
        }
        first
    }

    /// Compares the derivatives in `here` with finite differences over a `step`, in units of the length of `r`. `here`
    /// holds `n` values at `r` with their gradients and Hessians.
    fn slopes(
        &self,
        fact: &'static str,
        step: f64,
        r: [f64; 3],
        q: &[f64],
        here: &[f64],
        n: usize,
    ) -> Result<(), Error> {
        let step = step * largest(r);
        for axis in 0..3 {
            let [plus, minus] = [step, -step].map(|step| {
                let mut at = r;
                at[axis] += step;
                (at[axis], self.values(self.params, at, q))
            });
            // Everything with a derivative: values, and gradients where there are Hessians.
            for i in 0..if self.member.derived == 2 { 4 * n } else { n } {
                let of_gradient = |i: usize| ((i - n) / 3, (i - n) % 3);
                let place = |axis: usize| match i < n {
                    true => n + 3 * i + axis,
                    false => 4 * n + 6 * of_gradient(i).0 + [[0, 1, 2], [1, 3, 4], [2, 4, 5]][of_gradient(i).1][axis],
                };
                let slope = (plus.1[i] - minus.1[i]) / (plus.0 - minus.0);
                let size = largest((0..3).map(|a| here[place(a)])).max(slope.abs());
                let rounding = VALUE_ROUNDING * largest([plus.1[i], minus.1[i], here[i]]) / step;
                let stated = here[place(axis)];
                if size > UNDERFLOW && size.is_finite() && differ(slope, stated, SLOPE_TOLERANCE * size + rounding) {
                    let what = format!("the slope of value {i} along axis {axis}");
                    return Err(self.wrong(fact, what, r, slope, stated));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
