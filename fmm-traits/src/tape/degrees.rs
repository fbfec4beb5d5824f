//! Homogeneity by dimensional analysis. Coordinates are lengths; a parameter may be a power of a length. If powers
//! exist for which every sum adds equal powers of a length and every transcendental function (exp, erf, K₀, …) takes a
//! pure number, the kernel obeys the rule of dilation of [`kernel`](crate::kernel). This is a proof, and needs no
//! samples.
//!
//! Example: in (1 + √3·r/ℓ)·e^(−√3·r/ℓ) the parameter ℓ is a length, and the value is a pure number.

use super::{Op, Tape};

/// Powers of a length, under which a tape is homogeneous.
#[derive(Clone, Debug, PartialEq)]
pub struct Degrees {
    /// Power of each parameter. A parameter p of power d becomes p·h^(−d) under a dilation by h.
    pub parameters: Vec<f64>,
    /// [`Kernel::strength_degree`](crate::Kernel::strength_degree) of each strength.
    pub strengths: Vec<i32>,
    /// [`Kernel::value_degree`](crate::Kernel::value_degree) of each value.
    pub values: Vec<i32>,
}

/// A power that depends linearly on the unknown powers: the coefficient of each, and a constant at the end. `None` for
/// the constant 0, which has every power.
type Power = Option<Vec<f64>>;

fn combine(a: &Power, b: &Power, factor: f64) -> Power {
    let (a, b) = (a.as_ref()?, b.as_ref()?);
    Some(a.iter().zip(b).map(|(a, b)| a + factor * b).collect())
}

fn times(a: &Power, factor: f64) -> Power {
    Some(a.as_ref()?.iter().map(|a| a * factor).collect())
}

impl Tape {
    /// Powers under which the tape is homogeneous, with integer degrees of `strengths` strengths and of all values.
    /// `None` if there are none: then the kernel is not homogeneous, or its degree is not an integer.
    pub fn degrees(&self, parameters: usize, strengths: usize) -> Option<Degrees> {
        let unknowns = parameters + strengths;
        let unit = |k: usize| -> Power { Some((0..=unknowns).map(|i| if i == k { 1.0 } else { 0.0 }).collect()) };
        let number: Power = Some(vec![0.0; unknowns + 1]);
        let (mut powers, mut equations): (Vec<Power>, Vec<Vec<f64>>) = (Vec::new(), Vec::new());
        for node in self.nodes() {
            let [a, b, c] = node.args.map(|k| powers.get(k as usize).cloned().flatten());
            let mut same = |a: &Power, b: &Power| -> Power {
                equations.extend(combine(a, b, -1.0));
                a.clone().or(b.clone())
            };
            powers.push(match node.op {
                Op::Parameter(k) if k < parameters => unit(k),
                Op::Strength(k) if k < strengths => unit(parameters + k),
                Op::Parameter(_) | Op::Strength(_) => return None,
                Op::Coordinate(_) => unit(unknowns),
                Op::Constant(bits) if f64::from_bits(bits) == 0.0 => None,
                Op::Constant(_) => number.clone(),
                Op::Add | Op::Sub | Op::Lt | Op::Le | Op::Eq => same(&a, &b),
                Op::Mul => combine(&a, &b, 1.0),
                Op::Div => combine(&a, &b, -1.0),
                Op::Fma => same(&combine(&a, &b, 1.0), &c),
                Op::Neg => a,
                Op::Sqrt => times(&a, 0.5),
                Op::Rsqrt => times(&a, -0.5),
                Op::Exp | Op::Ln | Op::Sin | Op::Cos | Op::Erf | Op::BesselK0 | Op::BesselK1 => {
                    same(&a, &number);
                    number.clone()
                }
                Op::Select => same(&b, &c),
                Op::And | Op::Or | Op::Not => None,
            });
        }
        let solution = solve(equations, unknowns)?;
        let value = |&v: &u32| {
            let power = powers[v as usize]
                .as_ref()
                .map_or(0.0, |p| p[unknowns] + p.iter().zip(&solution).map(|(p, x)| p * x).sum::<f64>());
            integer(power)
        };
        Some(Degrees {
            parameters: solution[..parameters].to_vec(),
            strengths: solution[parameters..].iter().map(|&x| integer(-x)).collect::<Option<_>>()?,
            values: self.values().iter().map(value).collect::<Option<_>>()?,
        })
    }
}

/// `x` if it is a small integer.
fn integer(x: f64) -> Option<i32> {
    (x == x.round() && x.abs() < 100.0).then_some(x as i32)
}

/// Solves Σ row\[k\]·x\[k\] + row\[unknowns\] = 0 by elimination. Unknowns that no equation fixes are 0. `None` if the
/// equations contradict each other.
fn solve(mut rows: Vec<Vec<f64>>, unknowns: usize) -> Option<Vec<f64>> {
    const ROUNDING: f64 = 1e-9;
    let mut pivots: Vec<(usize, usize)> = Vec::new();
    let mut used = 0;
    for k in 0..unknowns {
        let best = (used..rows.len()).max_by(|&i, &j| rows[i][k].abs().total_cmp(&rows[j][k].abs()));
        let Some(best) = best.filter(|&i| rows[i][k].abs() > ROUNDING) else { continue };
        rows.swap(used, best);
        let pivot = rows[used].clone();
        for (i, row) in rows.iter_mut().enumerate().filter(|(i, _)| *i != used) {
            let factor = row[k] / pivot[k];
            if factor != 0.0 {
                row.iter_mut().zip(&pivot).for_each(|(x, p)| *x -= factor * p);
                row[k] = if i == used { row[k] } else { 0.0 };
            }
        }
        pivots.push((used, k));
        used += 1;
    }
    if rows[used..].iter().any(|row| row[unknowns].abs() > ROUNDING) {
        return None;
    }
    let mut solution = vec![0.0; unknowns];
    for (row, k) in pivots {
        let x = -rows[row][unknowns] / rows[row][k];
        // Powers are small fractions: 1/4 is the smallest that two roots make.
        let rounded = (x * 16.0).round() / 16.0;
        solution[k] = if (x - rounded).abs() < ROUNDING { rounded + 0.0 } else { x };
    }
    Some(solution)
}
