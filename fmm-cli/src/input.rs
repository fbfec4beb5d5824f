//! The points and strengths of a run: read from files, or made.

use crate::args::{ArraysName, PrecisionName, RunArgs};
use crate::failure::Failure;
use crate::kernel;
use crate::npy::{self, Part, WHOLE};
use crate::run::Asked;
use std::path::Path;

/// Points and strengths.
pub struct Input {
    pub sources: Vec<f64>,
    /// Sets of strengths. Complex strengths of a real kernel make two sets.
    pub strengths: Vec<Vec<f64>>,
    pub targets: Option<Vec<f64>>,
    /// Whether the strengths came as complex numbers, real and imaginary parts of the two strengths of a kernel in space.
    pub complex: bool,
}

impl Input {
    /// Rounds the points to the numbers of arrays of the device.
    pub fn rounded(mut self, args: &RunArgs) -> Self {
        if args.arrays == ArraysName::Device && args.numbers == PrecisionName::F32 {
            let points = self.sources.iter_mut().chain(self.targets.iter_mut().flatten());
            points.for_each(|x| *x = f64::from(*x as f32));
        }
        self
    }
}

/// Reads or makes a part of the points and strengths, with the shapes that the kernel needs.
pub fn read(args: &RunArgs, asked: &Asked, part: Part) -> Result<Input, Failure> {
    let (dim, strengths, complex) = (asked.dim, asked.width, kernel::is_complex(&args.kernel)?);
    let targets = args.targets.as_deref().map(|path| points(path, "targets", dim, part)).transpose()?;
    let (Some(sources), Some(path)) = (&args.sources, &args.strengths) else {
        let demo = kernel::demo(args.demo, dim)?;
        let of_part = |rows: Vec<f64>, width: usize| {
            let [first, end] = npy::part_of(asked.demo_points, part);
            if part == WHOLE { rows } else { rows[first * width..end * width].to_vec() }
        };
        let sources = of_part(fmm::demo::points(demo, asked.demo_points, args.seed), dim);
        let all = fmm::demo::strengths(asked.demo_points, strengths, args.seed);
        return Ok(Input { sources, strengths: vec![of_part(all, strengths)], targets, complex: false });
    };
    let given_complex = strengths == 2 && !complex && npy::read_part(path, part)?.complex;
    let (sources, values) = read_files([sources, path], part, dim, strengths, complex)?;
    Ok(Input { sources, strengths: values, targets, complex: given_complex })
}

/// Reads a part of the sources of dimension `dim` and of their sets of strengths, `strengths` numbers per source, for a
/// `complex` kernel one complex number. A kernel in space with two strengths also takes complex numbers: real and imaginary
/// parts.
pub fn read_files(
    [sources, path]: [&Path; 2],
    part: Part,
    dim: usize,
    strengths: usize,
    complex: bool,
) -> Result<(Vec<f64>, Vec<Vec<f64>>), Failure> {
    let sources = points(sources, "sources", dim, part)?;
    let array = npy::read_part(path, part)?;
    let n = sources.len() / dim;
    if dim == 2 && array.rows == n {
        match (array.columns, strengths) {
            // Real strengths for a complex kernel.
            (1, 2) if complex => return Ok((sources, vec![array.values.iter().flat_map(|&x| [x, 0.0]).collect()])),
            // Complex strengths for a real kernel.
            (2, 1) => {
                let part = |c| array.values.iter().skip(c).step_by(2).copied().collect();
                return Ok((sources, [0, 1].map(part).to_vec()));
            }
            _ => {}
        }
    }
    if array.complex && dim != 2 && strengths != 2 {
        let reason = "strengths are complex, and this kernel takes real ones: sum their two parts apart";
        return Err(Failure::file(path, reason));
    }
    if array.rows != n || (array.columns != strengths && array.rows > 0) {
        let shape = format!("({}, {}), expected ({n}, {strengths})", array.rows, array.columns);
        return Err(Failure::file(path, format!("strengths have shape {shape} for {n} sources")));
    }
    Ok((sources, vec![array.values]))
}

/// Reads a part of an N×`dim` array of points.
fn points(path: &Path, what: &str, dim: usize, part: Part) -> Result<Vec<f64>, Failure> {
    let array = npy::read_part(path, part)?;
    if array.complex && dim != 2 {
        return Err(Failure::file(path, format!("{what} are complex, expected real numbers (N, {dim})")));
    }
    if array.columns != dim && array.rows > 0 {
        let reason = format!("{what} have shape ({}, {}), expected (N, {dim})", array.rows, array.columns);
        let hint = if array.rows == dim { "; this looks transposed" } else { "" };
        return Err(Failure::file(path, reason + hint));
    }
    Ok(array.values)
}
