//! The command `fmm` on the device: its promise, through the facade, with points and values on the host. For a
//! bundle, in which it lies beside this program; with cargo `fmm-cli` tests the same (`--test it -- --ignored
//! gpu`).

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

pub type Test = (&'static str, fn(&Path));

pub const TESTS: &[Test] = &[
    ("command::the_doctor_names_the_device", doctor),
    ("command::the_tolerance_is_kept_in_f64", double),
    ("command::the_tolerance_is_kept_in_f32", single),
    ("command::ranks_share_a_device", ranks),
    ("command::a_bad_request_is_one_line", refused),
];

/// The command beside this program.
pub fn beside() -> Option<PathBuf> {
    let command = std::env::current_exe().ok()?.parent()?.join("fmm");
    command.is_file().then_some(command)
}

fn doctor(fmm: &Path) {
    let run = Command::new(fmm).arg("doctor").output().unwrap();
    let text = String::from_utf8(run.stdout).unwrap();
    assert!(run.status.success() && text.contains("cpu, cuda"), "{text}");
}

fn keeps(fmm: &Path, precision: &str, outputs: &str, cases: &[(&str, &[&str])]) {
    for (kernel, tolerances) in cases {
        for cloud in ["uniform", "ellipsoid", "plummer", "plane"] {
            for tolerance in *tolerances {
                let line = format!(
                    "run --backend cuda --demo {cloud} --n 60000 --kernel {kernel} --precision {precision} --outputs {outputs} \
                     --method equivalent --tolerance {tolerance} --verify 500 --json"
                );
                let run = Command::new(fmm).args(line.split_whitespace()).output().unwrap();
                assert!(run.status.success(), "{line}: {}", String::from_utf8_lossy(&run.stderr));
                let said: Value = serde_json::from_slice(&run.stdout).unwrap();
                assert_eq!(said["backend"], "cuda", "{line}");
                for output in outputs.split(',') {
                    let error = said["errors"][output]["rel_l2"].as_f64().unwrap();
                    assert!(error > 0.0 && error <= tolerance.parse().unwrap(), "{line}: {output} {error:e}");
                }
            }
        }
    }
}

fn double(fmm: &Path) {
    let cases: [(&str, &[&str]); 4] = [
        ("laplace", &["1e-3", "1e-6", "1e-9"]),
        ("yukawa --kappa 3", &["1e-5"]),
        ("laplace --source dipole", &["1e-4"]),
        ("stokes", &["1e-5"]),
    ];
    keeps(fmm, "f64", "potential,gradient", &cases);
}

fn single(fmm: &Path) {
    keeps(fmm, "f32", "potential,gradient", &[("laplace", &["1e-2", "1e-4"]), ("gravity --softening 1e-4", &["1e-3"])]);
    keeps(fmm, "f32", "potential", &[("stokes", &["1e-3"])]);
}

/// Two ranks on the first device have the error of one, to the bit.
fn ranks(fmm: &Path) {
    let error = |more: &str| {
        let line = format!(
            "run --backend cuda --demo ellipsoid --n 3000 --method equivalent --order 4 --ncrit 30 --verify 100 --json \
             {more}"
        );
        let run = Command::new(fmm).args(line.split_whitespace()).output().unwrap();
        assert!(run.status.success(), "{line}: {}", String::from_utf8_lossy(&run.stderr));
        let said: Value = serde_json::from_slice(&run.stdout).unwrap();
        let devices = said["plan"]["devices"].as_array().unwrap().iter().map(|part| part["device"].as_u64());
        (said["errors"]["potential"]["rel_l2"].as_f64().unwrap(), devices.collect::<Option<Vec<u64>>>().unwrap())
    };
    let (one, devices) = error("");
    assert!(one > 0.0 && devices.is_empty());
    assert_eq!(error("--ranks 2 --devices 0"), (one, vec![0, 0]));
    assert_eq!(error("--devices 0"), (one, Vec::new()));
}

fn refused(fmm: &Path) {
    for line in [
        "run --backend cuda --devices 0,0 --n 1000",
        "run --backend cuda --devices 0,99 --n 1000",
        "run --devices 0 --n 1000",
        "run --backend cuda --n 3000 --method equivalent --tolerance 1e-16",
        "run --backend cuda --n 1000 --kernel yukawa --kappa=-1",
    ] {
        let run = Command::new(fmm).args(line.split(' ')).output().unwrap();
        let text = String::from_utf8(run.stderr).unwrap();
        assert!(!run.status.success() && run.stdout.is_empty() && text.lines().count() == 1, "{line}: {text}");
    }
}
