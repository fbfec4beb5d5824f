//! What needs a GPU. Without one every test is reported as ignored, with the reason, and none as passed;
//! the standard harness cannot say so. The binary needs nothing beside it: carry it to a GPU machine.
//! Arguments are parts of the names of the tests to run.

mod direct;
mod errors;
mod far;
mod spherical;
mod topology;
mod treecode;

use backend_cuda::{Device, DeviceOptions};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

type Test = (&'static str, fn(&Device));

const TESTS: &[&[Test]] =
    &[errors::TESTS, direct::TESTS, topology::TESTS, far::TESTS, spherical::TESTS, treecode::TESTS];

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let tests: Vec<&Test> = TESTS
        .iter()
        .flat_map(|t| t.iter())
        .filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|w| name.contains(w.as_str())))
        .collect();
    println!("\nrunning {} tests", tests.len());
    let device = Device::open(&DeviceOptions::default());
    let (mut passed, mut failed, mut ignored) = (0, 0, 0);
    match &device {
        Ok(device) => println!("device: {:?}", device.info()),
        Err(e) => {
            ignored = tests.len();
            println!("all skipped: {e}");
        }
    }
    for (name, test) in tests {
        let Ok(device) = &device else {
            println!("test {name} ... ignored, no device");
            continue;
        };
        let start = std::time::Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| test(device)));
        let word = if outcome.is_ok() { "ok" } else { "FAILED" };
        *(if outcome.is_ok() { &mut passed } else { &mut failed }) += 1;
        println!("test {name} ... {word} ({:.2} s)", start.elapsed().as_secs_f64());
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
