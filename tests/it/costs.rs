//! The cost model: its choices, and the report of a plan about it. No choice depends on the machine unless the caller
//! asks for it.

use crate::cli::fmm;
use crate::{both, strengths, uniform};
use fmm::{
    CostModel, Costs, Description, Error, Fmm, Gravity, Harmonic2d, Laplace, Method, OrderCosts, Stokes, Targets,
};
use serde_json::Value;
use std::process::{Command, Stdio};

/// Made-up costs of Laplace with both outputs in f64, in nanoseconds: per pair, and per M2L translation of either
/// expansion.
fn made_up(pair: f64, equivalent: f64, spherical: f64) -> CostModel {
    let rows = |m2l: f64| [4, 24].map(|order| OrderCosts { order, point: 1.0, leaf: 0.0, m2l }).to_vec();
    let costs = Costs {
        device: None,
        kernel: "laplace".into(),
        precision: "f64".into(),
        outputs: vec!["potential".into(), "gradient".into()],
        pair,
        leaves: 0.0,
        direct: pair,
        evaluation: 1e6,
        equivalent: rows(equivalent),
        spherical: rows(spherical),
    };
    CostModel { source: "made up".into(), cases: vec![costs] }
}

fn described(builder: Fmm, n: usize) -> Description {
    let plan = builder.outputs(both()).tolerance(1e-4).plan(&uniform(n, 1), Targets::Sources).unwrap();
    let d = plan.describe();
    assert!(plan.verify(&strengths(n, 2), 300).unwrap().worst() <= 1e-4, "{}", d.why);
    d
}

#[test]
fn the_built_in_model_is_in_force_and_says_what_it_compared() {
    let d = described(Fmm::new(Laplace), 200);
    assert_eq!((d.method, d.cost_model.as_str()), ("direct", "built-in"));
    let d = described(Fmm::new(Laplace), 60_000);
    assert_ne!(d.method, "direct");
    assert!(["equivalent", "spherical", "direct"].iter().all(|name| d.why.contains(name)), "{}", d.why);
    // Kernels without spherical harmonics have no choice of expansion. For a given order there is none either, since an
    // order has another error in each expansion.
    let stokes = Fmm::new(Stokes { mu: 1.0 }).tolerance(1e-2).plan(&uniform(30_000, 1), Targets::Sources).unwrap();
    assert!(!stokes.describe().why.contains("spherical"));
    let ordered = Fmm::new(Laplace).order(5).plan(&uniform(60_000, 1), Targets::Sources).unwrap().describe();
    assert_eq!(ordered.method, "equivalent");
}

#[test]
fn the_cheapest_method_is_chosen() {
    let of = |costs: CostModel| described(Fmm::new(Laplace).cost_model(costs), 20_000);
    for (costs, method) in [
        (made_up(1.0, 50.0, 500.0), "equivalent"),
        (made_up(1.0, 500.0, 50.0), "spherical"),
        (made_up(1e-3, 5e3, 5e3), "direct"),
    ] {
        let d = of(costs.clone());
        assert_eq!((d.method, d.cost_model.as_str()), (method, "made up"), "{}", d.why);
        // A named method is used at any price.
        let asked = described(Fmm::new(Laplace).method(Method::EquivalentDensities).cost_model(costs), 20_000);
        assert_eq!((asked.method, asked.why.as_str()), ("equivalent", "asked for"));
    }
    // A case that was not measured uses the built-in costs, and the plan reports it.
    let other = Fmm::new(Laplace).cost_model(made_up(1.0, 1.0, 1.0)).plan(&uniform(500, 1), Targets::Sources).unwrap();
    assert_eq!(other.describe().cost_model, "built-in");
}

/// s = √(A₂/B₁): eq. 28 of Gumerov & Duraiswami.
#[test]
fn leaves_balance_near_and_far_field() {
    for s in [20.0f64, 60.0, 180.0] {
        let n = 60_000;
        let costs = made_up(1.0, 1e6, s * s * 27.0 / 189.0);
        let d = described(Fmm::new(Laplace).method(Method::SphericalHarmonics).cost_model(costs), n);
        let mean = n as f64 / d.leaves as f64;
        assert!((0.5..2.0).contains(&(mean / s)), "{s}: {mean}");
    }
}

#[test]
fn costs_of_the_plane_are_not_measured() {
    let plane = made_up(1.0, 50.0, 50.0).measure(&Fmm::new(Harmonic2d));
    assert!(matches!(plane, Err(Error::Unsupported { .. })), "{plane:?}");
}

/// Costs from a file may be any numbers.
#[test]
fn costs_that_are_none_are_refused() {
    let of = |spoil: &dyn Fn(&mut Costs)| {
        let mut model = made_up(1.0, 50.0, 50.0);
        spoil(&mut model.cases[0]);
        Fmm::new(Laplace).outputs(both()).cost_model(model).plan(&uniform(100, 1), Targets::Sources).err()
    };
    let spoilt: [&dyn Fn(&mut Costs); 9] = [
        &|c| c.direct = 0.0,
        &|c| c.evaluation = f64::NAN,
        &|c| c.pair = f64::NAN,
        &|c| c.pair = 0.0,
        &|c| c.leaves = -1.0,
        &|c| c.equivalent.clear(),
        &|c| c.spherical[1].m2l = f64::INFINITY,
        &|c| c.equivalent.reverse(),
        &|c| c.spherical[0].order = 0,
    ];
    for (k, spoil) in spoilt.into_iter().enumerate() {
        let refused = of(spoil);
        assert!(
            matches!(refused, Some(Error::Parameter { name, .. }) if name.starts_with("costs")),
            "{k}: {refused:?}"
        );
    }
    assert!(of(&|c| c.spherical.clear()).is_none());
}

/// If the near radius of a softened kernel covers the points, the fast method gains little.
#[test]
fn forecasts_know_of_softening() {
    let of = |softening: f64| {
        let gravity = Gravity { g: 1.0, softening };
        Fmm::new(gravity).tolerance(1e-4).plan(&uniform(20_000, 1), Targets::Sources).unwrap().describe()
    };
    assert_ne!(of(0.0).method, "direct");
    assert_eq!(of(0.01).method, "direct");
}

/// The command stores costs in its cache folder. It ignores costs of another machine unless they are named.
#[test]
fn the_command_keeps_costs_and_uses_those_of_this_machine() {
    let folder = tempfile::tempdir().unwrap();
    let run = |args: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fmm"));
        let run = command.args(args.split(' ')).env("XDG_CACHE_HOME", folder.path()).stdin(Stdio::null());
        let run = run.output().unwrap();
        assert!(run.status.success(), "{args}: {}", String::from_utf8_lossy(&run.stderr));
        String::from_utf8(run.stdout).unwrap()
    };
    let used = |more: &str| -> String {
        let json = run(&format!("run --demo uniform --n 1000 --json{more}"));
        let json: Value = serde_json::from_str(&json).unwrap();
        json["plan"]["cost_model"].as_str().unwrap().to_string()
    };
    assert_eq!(used(""), "built-in");
    // Costs of this machine: those of the same case are measured again, others are kept.
    let path = folder.path().join("fmm/costs.json");
    let mut old = CostModel { source: CostModel::fingerprint(), ..made_up(1.0, 50.0, 50.0) };
    old.cases[0].outputs.pop();
    let other = Costs { kernel: "stokes".into(), ..old.cases[0].clone() };
    old.cases.push(other.clone());
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, serde_json::to_string(&old).unwrap()).unwrap();
    let table = run("calibrate --outputs potential");
    let model: CostModel = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let [kept, costs] = &model.cases[..] else { panic!("{model:?}") };
    assert!(*costs != old.cases[0] && *kept == other && model.source == old.source, "{model:?}");
    // `timing` tests the sizes of costs. Here they must only be valid costs of several orders.
    for rows in [&costs.equivalent, &costs.spherical] {
        assert!(rows.len() > 1 && rows.is_sorted_by_key(|row| row.order), "{rows:?}");
        assert!(rows.iter().all(|row| row.m2l > 0.0 && row.m2l.is_finite()), "{rows:?}");
    }
    assert!(costs.pair > 0.0 && costs.pair.is_finite(), "{costs:?}");
    assert!(table.contains(path.to_str().unwrap()) && table.contains("spherical"), "{table}");
    assert_eq!((used(""), used(" --costs built-in")), (CostModel::fingerprint(), "built-in".to_string()));
    assert_eq!(used(" --outputs potential,gradient"), "built-in");
    let other = std::fs::read_to_string(&path).unwrap().replace(&CostModel::fingerprint(), "elsewhere");
    std::fs::write(&path, other).unwrap();
    assert_eq!((used(""), used(&format!(" --costs {}", path.display()))), ("built-in".into(), "elsewhere".into()));
    assert!(!fmm(&["calibrate", "--costs", "built-in"]).status.success());
    let spoilt = folder.path().join("spoilt.json");
    std::fs::write(&spoilt, std::fs::read_to_string(&path).unwrap().replace("\"pair\": ", "\"pair\": -")).unwrap();
    let refused = fmm(&["run", "--n", "10", "--costs", spoilt.to_str().unwrap()]);
    assert!(crate::cli::last_line(&refused).contains("pair"));
    let missing = fmm(&["run", "--n", "10", "--costs", "/nowhere/costs.json"]);
    assert!(crate::cli::last_line(&missing).contains("/nowhere/costs.json"));
}
