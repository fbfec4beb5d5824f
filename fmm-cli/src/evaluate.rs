//! Evaluations of a plan, timed and verified, on arrays of the host or of a GPU.

use crate::args::{PrecisionName, RunArgs};
use fmm::{Cuda, DeviceArray, DeviceScalar, DeviceStream, Error, ErrorReport, Fmm, Number, Output, Plan};
use std::time::Instant;

/// Numbers in f32.
pub fn narrowed(x: &[f64]) -> Vec<f32> {
    x.iter().map(|&x| x as f32).collect()
}

/// The points of a run, or of a rank, on its device.
pub struct OnDevice {
    cuda: Cuda,
    sources: DeviceArray,
    targets: Option<DeviceArray>,
}

impl OnDevice {
    pub fn new(cuda: Cuda, sources: &[f64], targets: Option<&[f64]>, args: &RunArgs) -> Result<Self, Error> {
        let array = |x: &[f64]| match args.numbers {
            PrecisionName::F32 => cuda.array(&narrowed(x)),
            _ => cuda.array(x),
        };
        Ok(OnDevice { cuda, sources: array(sources)?, targets: targets.map(array).transpose()? })
    }

    /// A plan of these points.
    pub fn plan(&self, builder: &Fmm) -> Result<Plan, Error> {
        builder.plan_on_device(&self.sources, self.targets.as_ref(), &DeviceStream::Null)
    }

    /// Gives the plan its points once more.
    pub fn give_to(&self, plan: &mut Plan) -> Result<(), Error> {
        plan.set_points_on_device(&self.sources, self.targets.as_ref(), &DeviceStream::Null)?;
        plan.synchronize()
    }
}

/// Median seconds of giving a plan new points; `None` if there is no memory for old and new points at once.
pub fn seconds_of_moves(repeat: u32, moved: impl FnMut() -> Result<(), Error>) -> Result<Option<f64>, Error> {
    match median(repeat, moved) {
        Err(e) if e.lacks_memory() => Ok(None),
        seconds => seconds.map(Some),
    }
}

/// Median seconds of `repeat` calls.
fn median(repeat: u32, mut call: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let mut runs = Vec::new();
    for _ in 0..repeat.max(1) {
        let start = Instant::now();
        call()?;
        runs.push(start.elapsed().as_secs_f64());
    }
    runs.sort_by(f64::total_cmp);
    Ok(runs[runs.len() / 2])
}

/// The sums of all sets of strengths.
pub struct Evaluated {
    pub outs: Vec<Output>,
    /// Seconds of one evaluation of each set, added up.
    pub seconds: f64,
    /// Seconds of each stage, added up over the sets.
    pub stages: [f64; 10],
    /// The larger error of the sets, output by output.
    pub errors: Option<ErrorReport>,
}

/// Evaluates `sets` of strengths one by one, and verifies them at some `samples`. With `there`, arrays are on the device.
pub fn evaluated<'a>(
    plan: &Plan,
    sets: impl Iterator<Item = &'a [f64]>,
    there: Option<&OnDevice>,
    args: &RunArgs,
    samples: Option<usize>,
) -> Result<Evaluated, Error> {
    let mut all = Evaluated { outs: Vec::new(), seconds: 0.0, stages: [0.0; 10], errors: None };
    for strengths in sets {
        let single = args.numbers == PrecisionName::F32;
        let (out, time, part) = match (there, single) {
            (Some(held), true) => evaluate_on_device::<f32>(held.cuda, plan, &narrowed(strengths), args.repeat)?,
            (Some(held), false) => evaluate_on_device::<f64>(held.cuda, plan, strengths, args.repeat)?,
            (None, true) => {
                let (out, time, part) = evaluate(plan, &narrowed(strengths), args.repeat)?;
                (out.widened(), time, part)
            }
            (None, false) => evaluate(plan, strengths, args.repeat)?,
        };
        all.seconds += time;
        all.stages.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
        if let Some(samples) = samples {
            let report = plan.verify_output(strengths, &out, samples)?;
            all.errors = Some(all.errors.map_or(report.clone(), |other| other.worse(&report)));
        }
        all.outs.push(out);
    }
    Ok(all)
}

/// As [`evaluate`], on arrays of the device. Such evaluations do not time their stages.
fn evaluate_on_device<T: DeviceScalar>(
    cuda: Cuda,
    plan: &Plan,
    strengths: &[T],
    repeat: u32,
) -> Result<(Output, f64, [f64; 10]), Error> {
    let (strengths, out) = (cuda.array(strengths)?, plan.device_output::<T>()?);
    let seconds = median(repeat, || {
        plan.apply_on_device(&strengths, &out, &DeviceStream::Null)?;
        plan.synchronize()
    })?;
    Ok((out.download::<T>()?.widened(), seconds, [0.0; 10]))
}

/// Runs `repeat` evaluations. Returns the output, and the seconds and stages of the median evaluation.
pub fn evaluate<T: Number>(plan: &Plan, strengths: &[T], repeat: u32) -> Result<(Output<T>, f64, [f64; 10]), Error> {
    let mut out = Output::default();
    let mut runs = Vec::new();
    for _ in 0..repeat.max(1) {
        plan.apply_into(strengths, &mut out)?;
        runs.push((out.seconds, out.stages));
    }
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (seconds, stages) = runs[runs.len() / 2];
    Ok((out, seconds, stages))
}
