//! What needs a GPU. Without one every test is reported as ignored, with the reason, and none as passed;
//! the standard harness cannot say so. The binary needs nothing beside it: carry it to a GPU machine
//! (`scripts/gpu-bundle.sh`). Arguments are parts of the names of the tests to run.

mod command;
mod cuts;
mod direct;
mod ends;
mod errors;
mod far;
mod limits;
mod moves;
mod near_alone;
mod nodes;
mod pieces;
mod plane;
mod quadtree;
mod ranks;
mod spherical;
mod stencil;
mod tasks;
mod topology;
mod treecode;

use backend_cuda::{CallerPoints, Device, DeviceOptions, Direct, Placed};
// Its code for each kernel is linked, and not compiled again.
use fmm_families as _;
use fmm_traits::{Error, Family, Kernels, Lists, OutputColumns, Outputs, Real, Targets};
use fmm_tree::BuildOptions;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

type Test = (&'static str, fn(&Device));

const TESTS: &[&[Test]] = &[
    errors::TESTS,
    direct::TESTS,
    topology::TESTS,
    ends::TESTS,
    far::TESTS,
    near_alone::TESTS,
    tasks::TESTS,
    nodes::TESTS,
    spherical::TESTS,
    stencil::TESTS,
    treecode::TESTS,
    plane::topology::TESTS,
    plane::TESTS,
    cuts::TESTS,
    quadtree::TESTS,
    ranks::TESTS,
    moves::TESTS,
    limits::TESTS,
    pieces::TESTS,
];

/// The direct sums of `family` in precision `T`, with the columns of each output.
fn direct<T: Real, F: Family>(
    device: &Device,
    family: &F,
    outputs: Outputs,
    sources: &[f64],
    strengths: &[f64],
    targets: Targets,
) -> Result<(Vec<f64>, Vec<OutputColumns>), Error> {
    let mut sum = Direct::<T>::new(device, &Kernels::of(family, outputs)?, sources, targets, None)?;
    Ok((sum.apply(strengths)?, sum.columns().to_vec()))
}

/// Whether the device is that of `cuda-emulator/`.
fn is_emulated(device: &Device) -> bool {
    device.info().name == "emulated GPU"
}

/// Whether case `k` of a table runs: all cases on a GPU, one in `parts` on the emulated GPU.
fn in_turn(device: &Device, k: usize, parts: usize) -> bool {
    fmm_traits::testkit::in_turn(k, parts) || !is_emulated(device)
}

/// Points on the device.
fn send(device: &Device, points: &[f64]) -> CallerPoints {
    CallerPoints::new(device, "points", points).unwrap()
}

/// Takes the last edge out of the V list, which is then not that of the rules: dense matrices sum it.
fn without_last_edge(lists: &mut Lists) {
    lists.m2l.sources.pop();
    let last = lists.m2l.sources.len();
    lists.m2l.starts.iter_mut().for_each(|e| *e = (*e).min(last));
}

/// Points of the host in their tree on the device.
fn placed(device: &Device, options: &BuildOptions, s: &[f64], t: Option<&[f64]>) -> Result<Placed, Error> {
    let t = t.map(|t| CallerPoints::new(device, "targets", t)).transpose()?;
    Placed::new(device, options, &CallerPoints::new(device, "sources", s)?, t.as_ref())
}

/// What became of the tests.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    ignored: usize,
}

impl Tally {
    /// Runs a test, or says why not.
    fn run(&mut self, name: &str, test: Result<impl FnOnce(), &str>) {
        let test = match test {
            Ok(test) => test,
            Err(why) => {
                self.ignored += 1;
                return println!("test {name} ... ignored, {why}");
            }
        };
        let start = std::time::Instant::now();
        let passed = catch_unwind(AssertUnwindSafe(test)).is_ok();
        *(if passed { &mut self.passed } else { &mut self.failed }) += 1;
        println!("test {name} ... {} ({:.2} s)", if passed { "ok" } else { "FAILED" }, start.elapsed().as_secs_f64());
    }
}

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|w| name.contains(w.as_str()));
    let device = Device::open(&DeviceOptions::default());
    match &device {
        Ok(device) => println!("\ndevice: {:?}", device.info()),
        Err(e) => println!("\nall skipped: {e}"),
    }
    let mut tally = Tally::default();
    // Those of another process come first: what this one has used of the memory it keeps.
    let fmm = command::beside();
    for (name, test) in command::TESTS.iter().filter(|t| is_wanted(t.0)) {
        let ready = device.as_ref().map_err(|_| "no device");
        let ready = ready.and_then(|_| fmm.as_deref().ok_or("no command fmm beside this program"));
        tally.run(name, ready.map(|fmm| || test(fmm)));
    }
    for (name, test) in TESTS.iter().flat_map(|t| t.iter()).filter(|t| is_wanted(t.0)) {
        tally.run(name, device.as_ref().map(|device| || test(device)).map_err(|_| "no device"));
    }
    let Tally { passed, failed, ignored } = tally;
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
