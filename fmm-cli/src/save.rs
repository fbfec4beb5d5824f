//! The arrays of a run in files.

use crate::args::RunArgs;
use crate::failure::Failure;
use crate::input::Input;
use crate::npz::{self, Pending};
use fmm::{Output, Outputs};

/// Saves the requested arrays. Arrays are complex for a `complex` kernel, and for a real kernel with two sets of
/// strengths.
pub fn save(
    file: &mut Pending,
    (m, dim): (usize, usize),
    components: &dyn Fn(Outputs) -> usize,
    outs: &[Output],
    outputs: Outputs,
    complex: bool,
) -> Result<(), Failure> {
    if complex || outs.len() == 2 {
        for (output, name) in Outputs::ALL.into_iter().filter(|(o, _)| outputs.contains(*o)) {
            let parts: Vec<&[f64]> = outs.iter().map(|out| out.get(output)).collect();
            let shape: Vec<usize> = [m].into_iter().chain(axes(output, dim)).collect();
            let width: usize = shape[1..].iter().product();
            // A row of a complex kernel holds all real parts, then all imaginary parts.
            let part = |i: usize, k: usize| match parts[..] {
                [re, im] => [re[width * i + k], im[width * i + k]],
                _ => [parts[0][2 * width * i + k], parts[0][2 * width * i + width + k]],
            };
            let values: Vec<f64> = (0..m * width).flat_map(|e| part(e / width, e % width)).collect();
            file.add_complex(name, &shape, &values)?;
        }
        return Ok(());
    }
    let out = &outs[0];
    for (output, name) in Outputs::ALL.into_iter().filter(|(o, _)| outputs.contains(*o)) {
        let derivatives = axes(output, dim);
        let components = components(output) / derivatives.iter().product::<usize>();
        let mut shape = vec![m];
        if components != 1 {
            shape.push(components);
        }
        shape.extend(derivatives);
        file.add(name, &shape, out.get(output))?;
    }
    Ok(())
}

/// Adds the points and strengths of a demo to a file of several arrays.
pub fn save_demo(
    file: &mut Pending,
    args: &RunArgs,
    input: &Input,
    (dim, strengths): (usize, usize),
    complex: bool,
) -> Result<(), Failure> {
    if args.sources.is_some() || args.out.as_deref().is_some_and(npz::holds_one) {
        return Ok(());
    }
    let n = input.sources.len() / dim;
    file.add("sources", &[n, dim], &input.sources)?;
    let shape = [n, strengths];
    match strengths {
        1 => file.add("strengths", &shape[..1], &input.strengths[0]),
        2 if complex => file.add_complex("strengths", &shape[..1], &input.strengths[0]),
        _ => file.add("strengths", &shape, &input.strengths[0]),
    }
}

/// Refuses complex strengths if an output has other numbers than real and imaginary parts.
pub fn fit_complex(outputs: Outputs, dim: usize, components: &dyn Fn(Outputs) -> usize) -> Result<(), Failure> {
    for (output, name) in Outputs::ALL.into_iter().filter(|(o, _)| outputs.contains(*o)) {
        let (found, expected) = (components(output), 2 * axes(output, dim).iter().product::<usize>());
        if found != expected {
            let text = format!("strengths are complex, but {name} has {found} numbers instead of {expected}");
            return Err(Failure::Input(text));
        }
    }
    Ok(())
}

/// The axes along which an output has derivatives: none, one or two axes of `dim` coordinates.
fn axes(output: Outputs, dim: usize) -> Vec<usize> {
    match output {
        Outputs::GRADIENT => vec![dim],
        Outputs::HESSIAN => vec![dim; 2],
        _ => Vec::new(),
    }
}
