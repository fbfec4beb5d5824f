//! The contract of the command line.

use serde_json::Value;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs the command.
pub fn fmm(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fmm")).args(args).stdin(Stdio::null()).output().unwrap()
}

/// The one-line error message of a failed run.
pub fn last_line(run: &Output) -> String {
    let text = String::from_utf8(run.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text.trim_end().to_string()
}

pub fn json(args: &[&str]) -> Value {
    let run = fmm(args);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    serde_json::from_slice(&run.stdout).unwrap()
}

pub fn refused(args: &[&str]) -> String {
    let run = fmm(args);
    assert!(!run.status.success() && run.stdout.is_empty(), "{args:?}");
    let line = last_line(&run);
    assert!(line.starts_with("error: "), "{line}");
    line
}

/// An `.npy` file written by another implementation.
fn write_npy<T: npyz::Serialize + npyz::AutoSerialize + Copy>(
    path: &Path,
    shape: &[u64],
    order: npyz::Order,
    data: &[T],
) {
    use npyz::WriterBuilder;
    let file = std::fs::File::create(path).unwrap();
    let mut writer =
        npyz::WriteOptions::new().default_dtype().shape(shape).order(order).writer(file).begin_nd().unwrap();
    writer.extend(data.iter().copied()).unwrap();
    writer.finish().unwrap();
}

/// Shape and numbers of one array of an `.npz` file, read by another implementation.
pub fn read_npz(path: &Path, name: &str) -> (Vec<u64>, Vec<f64>) {
    let mut zip = zip::ZipArchive::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut bytes = Vec::new();
    zip.by_name(&format!("{name}.npy")).unwrap().read_to_end(&mut bytes).unwrap();
    let array = npyz::NpyFile::new(&bytes[..]).unwrap();
    (array.shape().to_vec(), array.into_vec::<f64>().unwrap())
}

#[test]
fn the_json_has_the_keys_of_the_contract() {
    let args = "run --demo uniform --n 20000 --seed 3 --tolerance 1e-4 --outputs potential,gradient --repeat 2 --verify 200 --json";
    let v = json(&args.split(' ').collect::<Vec<_>>());
    for key in [
        "kernel",
        "method",
        "backend",
        "precision",
        "n_sources",
        "n_targets",
        "tolerance",
        "order",
        "ncrit",
        "levels",
        "boxes",
        "leaves",
        "threads",
        "seconds",
        "errors",
        "peak_rss_bytes",
    ] {
        assert!(!v[key].is_null(), "{key}");
    }
    for key in
        ["tree", "lists", "operators", "p2m", "m2m", "m2l", "p2l", "l2l", "m2p", "l2p", "p2p", "plan", "apply", "total"]
    {
        assert!(v["seconds"][key].as_f64().unwrap() >= 0.0, "{key}");
    }
    for output in ["potential", "gradient"] {
        for key in ["rel_l2", "rms", "max_over_rms"] {
            assert!(v["errors"][output][key].is_f64(), "{output} {key}");
        }
        assert!(v["errors"][output]["rel_l2"].as_f64().unwrap() <= 1e-4);
    }
    assert_eq!(
        (&v["kernel"], &v["backend"], &v["precision"]),
        (&Value::from("laplace"), &Value::from("cpu"), &Value::from("f64"),)
    );
    assert!(["equivalent", "spherical"].map(Value::from).contains(&v["method"]), "{}", v["method"]);
    assert_eq!((v["n_sources"].as_u64(), v["n_targets"].as_u64()), (Some(20000), Some(20000)));
    assert!(v["peak_rss_bytes"].as_u64().unwrap() > 1_000_000);
}

#[test]
fn defaults_and_nulls() {
    let v = json(&["run", "--demo", "plummer", "--n", "300", "--json"]);
    assert_eq!((&v["tolerance"], &v["method"]), (&Value::from(1e-6), &Value::from("direct")));
    assert_eq!(v["errors"], serde_json::json!({}));
    let v = json(&["run", "--demo", "plane", "--n", "5000", "--order", "5", "--method", "equivalent", "--json"]);
    assert!(v["tolerance"].is_null());
    assert_eq!(v["order"], 5);
    // Without points: the verified showcase on the ellipsoid, here with fewer points.
    let v = json(&["run", "--n", "30000", "--json"]);
    assert_eq!(v["tolerance"], 1e-5);
    assert!(v["errors"]["potential"]["rel_l2"].as_f64().unwrap() <= 1e-5);
    assert!(v["errors"]["gradient"]["rel_l2"].as_f64().unwrap() <= 1e-5);
}

#[test]
fn every_kernel_source_and_output() {
    for args in [
        "--kernel yukawa --kappa 2 --outputs potential,gradient",
        "--kernel stokes --mu 0.5",
        "--kernel stokes --outputs potential,pressure",
        "--kernel stokes --source stresslet --outputs pressure",
        "--kernel gravity --softening 0.01 --outputs gradient",
        "--source dipole",
        "--source mixed --outputs potential,gradient,hessian",
        "--precision f32 --tolerance 1e-3",
        "--kernel laplace --backend cpu --threads 2 --ncrit 50",
    ] {
        let all = format!("run --demo uniform --n 3000 --method equivalent --verify 100 --json {args}");
        let v = json(&all.split(' ').collect::<Vec<_>>());
        let tolerance = v["tolerance"].as_f64().unwrap();
        for (output, e) in v["errors"].as_object().unwrap() {
            assert!(e["rel_l2"].as_f64().unwrap() <= tolerance, "{args}: {output} {e}");
        }
        assert!(!v["errors"].as_object().unwrap().is_empty());
    }
}

#[test]
fn files_in_and_out() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    // Two charges 4π at distance 2 on the z axis, in every file format.
    write_npy(folder.path().join("c.npy").as_path(), &[2, 3], npyz::Order::C, &[0.0f32, 0.0, 0.0, 0.0, 0.0, 2.0]);
    write_npy(folder.path().join("f.npy").as_path(), &[2, 3], npyz::Order::Fortran, &[0i64, 0, 0, 0, 0, 2]);
    std::fs::write(at("x.csv"), "x,y,z\n0,0,0\n0,0,2\n").unwrap();
    let q = 4.0 * std::f64::consts::PI;
    write_npy(folder.path().join("q.npy").as_path(), &[2], npyz::Order::C, &[q, 2.0 * q]);
    for sources in ["c.npy", "f.npy", "x.csv"] {
        let out = at("out.npz");
        let (sources, strengths) = (at(sources), at("q.npy"));
        let v = json(&[
            "run",
            "--sources",
            &sources,
            "--strengths",
            &strengths,
            "--outputs",
            "potential,gradient",
            "--out",
            &out,
            "--json",
        ]);
        assert_eq!(v["n_sources"], 2);
        let (shape, u) = read_npz(Path::new(&out), "potential");
        assert_eq!(shape, [2]);
        assert!((u[0] - 1.0).abs() < 1e-12 && (u[1] - 0.5).abs() < 1e-12);
        let (shape, g) = read_npz(Path::new(&out), "gradient");
        assert_eq!(shape, [2, 3]);
        assert!((g[2] - 0.5).abs() < 1e-12 && (g[5] + 0.25).abs() < 1e-12);
    }
    std::fs::write(at("y.csv"), "0 0 1\n").unwrap();
    let out = at("t.npz");
    json(&[
        "run",
        "--sources",
        &at("x.csv"),
        "--strengths",
        &at("q.npy"),
        "--targets",
        &at("y.csv"),
        "--out",
        &out,
        "--json",
    ]);
    assert!((read_npz(Path::new(&out), "potential").1[0] - 3.0).abs() < 1e-12);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|n| !n.to_string_lossy().ends_with(".part")), "{left:?}");
}

/// Header and numbers of a complex array of an `.npz` file.
fn read_complex(path: &str, name: &str) -> (String, Vec<f64>) {
    let mut zip = zip::ZipArchive::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut bytes = Vec::new();
    zip.by_name(&format!("{name}.npy")).unwrap().read_to_end(&mut bytes).unwrap();
    let (header, data) = bytes[10..].split_at(u16::from_le_bytes([bytes[8], bytes[9]]) as usize);
    let numbers = data.chunks_exact(8).map(|x| f64::from_le_bytes(x.try_into().unwrap())).collect();
    (String::from_utf8_lossy(header).to_string(), numbers)
}

/// Complex strengths of a kernel with two real ones give complex outputs.
#[test]
fn complex_strengths_in_space() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    write_npy(Path::new(&at("x.npy")), &[2, 3], npyz::Order::C, &[0.0, 0.0, 0.0, 0.0, 0.6, 0.8]);
    let header = "{'descr': '<c16', 'fortran_order': False, 'shape': (2,), }";
    let mut file = [&b"\x93NUMPY\x01\0"[..], &(header.len() as u16).to_le_bytes(), header.as_bytes()].concat();
    file.extend([2.0f64, 1.0, 0.0, -3.0].into_iter().flat_map(f64::to_le_bytes));
    std::fs::write(at("q.npy"), file).unwrap();
    let (x, q, out) = (at("x.npy"), at("q.npy"), at("out.npz"));
    let files = ["run", "--sources", &x, "--strengths", &q, "--outputs", "potential,gradient", "--out", &out, "--json"];
    json(&[&files[..], &["--kernel", "helmholtz", "--set", "k=2"]].concat());
    // At distance 1: e^(2i)/(4π), with the slope (2i − 1)·e^(2i)/(4π).
    let product = |a: [f64; 2], b: [f64; 2]| [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]];
    let wave = [2f64.cos(), 2f64.sin()].map(|x| x / (4.0 * std::f64::consts::PI));
    let (header, u) = read_complex(&out, "potential");
    assert!(header.contains("<c16") && header.contains("(2,)"), "{header}");
    let (header, g) = read_complex(&out, "gradient");
    assert!(header.contains("<c16") && header.contains("(2, 3,)"), "{header}");
    for (target, strength, side) in [(0, [0.0, -3.0], -1.0), (1, [2.0, 1.0], 1.0)] {
        let potential = product(wave, strength);
        for (axis, along) in [0.0, 0.6, 0.8].into_iter().enumerate() {
            let slope = product(potential, [-1.0, 2.0]).map(|x| x * along * side);
            for part in 0..2 {
                assert!((u[2 * target + part] - potential[part]).abs() < 1e-14, "{target}");
                assert!((g[2 * (3 * target + axis) + part] - slope[part]).abs() < 1e-14, "{target} {axis}");
            }
        }
    }
    // A kernel whose potential is no complex number.
    let two = at("two.fmm");
    std::fs::write(&two, "strengths 2\nvalue (q1 + q2)/r").unwrap();
    let text = refused(&[&files[..], &["--kernel-file", &two]].concat());
    assert!(text.contains("potential has 1 numbers instead of 2"), "{text}");
}

#[test]
fn a_demo_saves_its_points() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("demo.npz");
    json(&[
        "run",
        "--demo",
        "uniform",
        "--n",
        "100",
        "--kernel",
        "stokes",
        "--outputs",
        "potential,gradient",
        "--out",
        out.to_str().unwrap(),
        "--json",
    ]);
    for (name, expected) in [
        ("potential", vec![100, 3]),
        ("gradient", vec![100, 3, 3]),
        ("sources", vec![100, 3]),
        ("strengths", vec![100, 3]),
    ] {
        let (shape, values) = read_npz(&out, name);
        assert_eq!(shape, expected);
        assert!(values.iter().all(|x| x.is_finite()) && values.iter().any(|x| *x != 0.0));
    }
    assert_eq!(read_npz(&out, "sources").1, fmm::demo::points(fmm::demo::Demo::Uniform, 100, 1));
}

#[test]
fn refusals_are_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    std::fs::write(at("x.csv"), "0,0,0\n1,1,1\n").unwrap();
    std::fs::write(at("bad.csv"), "0,0,0\n1,nan,1\n").unwrap();
    std::fs::write(at("q.csv"), "1\n2\n").unwrap();
    std::fs::write(at("q3.csv"), "1\n2\n3\n").unwrap();
    std::fs::write(at("t.csv"), "0,0\n1,1\n1,2\n").unwrap();
    let (x, q) = (at("x.csv"), at("q.csv"));
    let with = |more: &[&str]| {
        let mut args = vec!["run", "--sources", &x, "--strengths", &q];
        args.extend(more);
        refused(&args)
    };
    assert!(with(&["--tolerance", "0"]).contains("tolerance 0"));
    assert!(with(&["--tolerance", "-1"]).contains("tolerance -1"));
    assert!(with(&["--tolerance", "nan"]).contains("NaN"));
    assert!(with(&["--tolerance", "1e-9", "--precision", "f32", "--method", "direct"]).contains("floor"));
    assert!(with(&["--tolerance", "1e-3", "--order", "5"]).contains("choose one"));
    assert!(with(&["--order", "99"]).contains("3..=16"));
    assert!(with(&["--kernel", "yukawa", "--kappa", "-1"]).contains("kappa = -1"));
    assert!(with(&["--kappa", "1"]).contains("no meaning for kernel laplace"));
    assert!(with(&["--outputs", "pressure"]).contains("no output pressure"));
    assert!(with(&["--outputs", "nonsense"]).contains("nonsense"));
    assert!(with(&["--source", "stokeslet"]).contains("no sources of kind stokeslet"));
    assert!(with(&["--demo", "uniform"]).contains("cannot be used with"));
    assert!(with(&["--out", "/nonexistent/folder/out.npz"]).contains("/nonexistent/folder"));
    assert!(with(&["--out", folder.path().to_str().unwrap()]).contains("is a folder"));
    assert!(with(&["--out", "sums.txt"]).contains("ends neither in .npz nor in .npy"));
    assert!(with(&["--targets", &at("none.npy")]).contains("none.npy"));
    assert!(with(&["--targets", &at("t.csv")]).contains("looks transposed"));
    assert!(with(&["--threads", "0"]).contains("threads = 0"));
    assert!(with(&["--repeat", "0"]).contains("0"));
    assert!(refused(&["run", "--sources", &x]).contains("--strengths"));
    assert!(refused(&["run", "--sources", &at("bad.csv"), "--strengths", &q]).contains("sources[1, 1] is NaN"));
    assert!(refused(&["run", "--sources", &x, "--strengths", &at("q3.csv")]).contains("(3, 1), expected (2, 1)"));
    let header = "{'descr': '<c16', 'fortran_order': False, 'shape': (2,), }";
    let mut complex = [&b"\x93NUMPY\x01\0"[..], &(header.len() as u16).to_le_bytes(), header.as_bytes()].concat();
    complex.extend([0; 32]);
    std::fs::write(at("complex.npy"), complex).unwrap();
    assert!(refused(&["run", "--sources", &x, "--strengths", &at("complex.npy")]).contains("strengths are complex"));
    assert!(refused(&["run", "--sources", folder.path().to_str().unwrap(), "--strengths", &q]).contains("irectory"));
    assert!(refused(&["run", "--n", "4000000000"]).contains("bytes are needed"));
    assert!(refused(&["run", "--n", "100000000000"]).contains("4294967294"));
    std::fs::write(at("none.csv"), "x,y,z\n# nothing\n").unwrap();
    std::fs::write(at("text.npy"), "0,0,0\n1,1,1\n").unwrap();
    assert!(refused(&["run", "--sources", &at("none.csv"), "--strengths", &q]).contains("no line has a number"));
    assert!(refused(&["run", "--sources", &at("text.npy"), "--strengths", &q]).contains("no .npy file"));
    assert!(refused(&["run", "--backend", "abacus"]).contains("abacus"));
    for memory in ["lots", "0", "8XB"] {
        assert!(refused(&["run", "--device-memory", memory]).contains("such as 8GB"));
    }
    assert!(with(&["--device-memory", "8GB"]).contains("needs --backend cuda"));
    assert!(refused(&["walk"]).contains("walk"));
    // A failed run leaves no output file.
    let out = at("never.npz");
    refused(&["run", "--sources", &at("bad.csv"), "--strengths", &q, "--out", &out]);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 8, "{left:?}");
}

#[test]
fn a_closed_pipe_is_no_accident() {
    for args in [&["run", "--demo", "uniform", "--n", "200"][..], &["--help"], &["doctor"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_fmm"))
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let run = child.wait_with_output().unwrap();
        assert!(run.status.success() && run.stderr.is_empty(), "{}", String::from_utf8_lossy(&run.stderr));
    }
}

#[test]
fn the_table_has_bars_and_a_verdict() {
    let run = fmm(&["run", "--demo", "ellipsoid", "--n", "20000", "--method", "equivalent", "--verify", "100"]);
    let text = String::from_utf8(run.stdout).unwrap();
    for word in ["laplace", "█", "p2p", "m2l", "apply", "within tolerance", "threads"] {
        assert!(text.contains(word), "{word} in\n{text}");
    }
    assert!(run.stderr.is_empty());
}

#[test]
fn doctor_and_bench() {
    let text = String::from_utf8(fmm(&["doctor"]).stdout).unwrap();
    for word in ["instruction sets", "threads", "memory", "CUDA library", "portable"] {
        assert!(text.contains(word), "{text}");
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("new/bench");
    let run = fmm(&[
        "bench",
        "--n",
        "500,2000",
        "--tolerance",
        "1e-3,1e-5",
        "--method",
        "equivalent,direct",
        "--repeat",
        "1",
        "--out",
        out.to_str().unwrap(),
    ]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let csv = std::fs::read_to_string(out.join("bench.csv")).unwrap();
    assert_eq!(csv.lines().count(), 9);
    let columns = csv.lines().next().unwrap().split(',').count();
    assert!(csv.lines().all(|l| l.split(',').count() == columns));
    let column = |name: &str| {
        let at = csv.lines().next().unwrap().split(',').position(|c| c == name).unwrap();
        csv.lines().skip(1).map(move |l| l.split(',').nth(at).unwrap().parse::<f64>())
    };
    // Rates exist only for stages that run: so few points may have no M2L.
    for name in ["p2p_s", "p2p_gpairs_s", "p2p_share"] {
        assert!(column(name).all(|x| x.is_ok_and(|x| x > 0.0)), "{name} in {csv}");
    }
    for name in ["m2l_gflop_s", "m2l_gb_s"] {
        assert!(column(name).any(|x| x.is_ok_and(|x| x > 0.0)), "{name} in {csv}");
    }
    let svg = std::fs::read_to_string(out.join("bench.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("polyline"));
}

#[test]
fn rows_before_an_error_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let how = ["--repeat", "1", "--method", "equivalent", "--outputs", "potential"];
    let run = fmm(&[&["bench", "--n", "3000", "--tolerance", "1e-3,1e-20"], &how[..], &["--out", out]].concat());
    assert!(!run.status.success() && last_line(&run).contains("floor"));
    let csv = std::fs::read_to_string(folder.path().join("bench.csv")).unwrap();
    assert_eq!(csv.lines().count(), 2, "{csv}");
    assert_eq!(csv, String::from_utf8(run.stdout).unwrap());
    assert!(std::fs::read_to_string(folder.path().join("bench.svg")).unwrap().contains("<svg"));
}

#[test]
fn help_is_help() {
    let text = |args: &[&str]| {
        let run = fmm(args);
        assert!(run.status.success() && run.stderr.is_empty(), "{}", String::from_utf8_lossy(&run.stderr));
        String::from_utf8(run.stdout).unwrap()
    };
    let bare = text(&[]);
    assert_eq!(bare, text(&["--help"]));
    assert!(bare.lines().count() > 8 && ["run", "doctor", "bench"].iter().all(|c| bare.contains(c)), "{bare}");
    // The defaults that `defaults_and_nulls` measures.
    let run = text(&["run", "--help"]);
    for word in ["showcase: 1e-5", "showcase: potential,gradient", "showcase: 1000", "ellipsoid", "1000000"] {
        assert!(run.contains(word), "{word} in\n{run}");
    }
}

#[test]
fn an_error_above_the_tolerance_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    // Opposite charges at one place cancel, so the tolerance is no promise for them.
    let mut sources = crate::uniform(2500, 1);
    sources.extend(sources.clone());
    let opposite: Vec<f64> = (0..5000).map(|i| if i < 2500 { 1.0 } else { -1.0 }).collect();
    let targets: Vec<f64> = crate::uniform(500, 2).iter().map(|x| x + 30.0).collect();
    write_npy(Path::new(&path("s.npy")), &[5000, 3], npyz::Order::C, &sources);
    write_npy(Path::new(&path("t.npy")), &[500, 3], npyz::Order::C, &targets);
    write_npy(Path::new(&path("opposite.npy")), &[5000], npyz::Order::C, &opposite);
    write_npy(Path::new(&path("random.npy")), &[5000], npyz::Order::C, &crate::strengths(5000, 3));
    let (s, t) = (path("s.npy"), path("t.npy"));
    let mut seen = [0; 2];
    for (q, tolerance) in
        [("opposite.npy", "1e-4"), ("opposite.npy", "1e-6"), ("random.npy", "1e-4"), ("random.npy", "1e-6")]
    {
        let q = path(q);
        let files = ["run", "--sources", &s, "--targets", &t, "--strengths", &q, "--outputs", "potential,gradient"];
        let how = ["--method", "equivalent", "--tolerance", tolerance, "--verify", "500", "--json"];
        let run = fmm(&[&files[..], &how].concat());
        let report: Value = serde_json::from_slice(&run.stdout).unwrap();
        let worst = ["potential", "gradient"].map(|o| report["errors"][o]["rel_l2"].as_f64().unwrap());
        let met = worst.iter().all(|e| *e <= tolerance.parse().unwrap());
        assert_eq!(run.status.success(), met, "{tolerance}: {worst:?}");
        assert!(met || last_line(&run).contains("above the tolerance"));
        seen[met as usize] += 1;
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
    assert!(refused(&["run", "--n", "1000", "--verify", "0"]).contains("--verify 0"));
}
