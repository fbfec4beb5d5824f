//! No bytes and no numbers as input make the command or the library panic.

use crate::cli::{fmm, last_line};
use fmm::{Fmm, Gravity, Laplace, Method, Outputs, Precision, Stokes, Targets, Yukawa};
use proptest::prelude::*;

/// Numbers that often cause failures.
fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        5 => -1.0..1.0f64,
        1 => prop::sample::select(vec![0.0, -0.0, 1.0, 1e30, -1e30, 1e-30, 1e300, 1e-308, f64::MAX]),
        1 => prop::sample::select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE, 5e-324]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn the_library(
        x in prop::collection::vec(number(), 0..40),
        y in prop::option::of(prop::collection::vec(number(), 0..20)),
        q in prop::collection::vec(number(), 0..20),
        tolerance in prop::option::of(number()),
        order in prop::option::weighted(0.3, 0usize..20),
        ncrit in prop::option::of(0usize..5),
        parameter in number(),
        which in 0..4,
        fast: bool,
        single: bool,
    ) {
        let mut builder = match which {
            0 => Fmm::new(Laplace),
            1 => Fmm::new(Yukawa { kappa: parameter }),
            2 => Fmm::new(Stokes { mu: parameter }),
            _ => Fmm::new(Gravity { g: 1.0, softening: parameter }),
        };
        builder = builder.threads(1).outputs(Outputs::POTENTIAL | Outputs::GRADIENT);
        builder = builder.method(if fast { Method::EquivalentDensities } else { Method::Direct });
        builder = builder.precision(if single { Precision::F32 } else { Precision::F64 });
        if let Some(t) = tolerance { builder = builder.tolerance(t.abs().max(1e-5)); }
        if let Some(p) = order { builder = builder.order(p.min(6)); }
        if let Some(k) = ncrit { builder = builder.ncrit(k); }
        let targets = y.as_deref().map_or(Targets::Sources, Targets::Points);
        if let Ok(plan) = builder.plan(&x, targets) {
            let need = plan.n_sources() * plan.strengths();
            let mut q = q;
            q.resize(need, 1.0);
            if let Ok(out) = plan.apply(&q) {
                prop_assert_eq!(out.gradient.len(), 3 * out.potential.len());
                let _ = plan.verify_output(&q, &out, 5);
            }
            let _ = plan.apply_transpose(&vec![1.0; plan.n_targets()]);
            let _ = plan.describe();
            let _ = plan.near_field().count();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    #[test]
    fn the_command(bytes: Vec<u8>, kind in 0usize..3, text in "[0-9eE+,.\\- \n#nainf]{0,60}") {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(["x.csv", "x.csv", "x.npy"][kind]);
        let content = match kind {
            0 => bytes,
            1 => text.into_bytes(),
            _ => {
                let head = "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }\n";
                let mut all = b"\x93NUMPY\x01\x00".to_vec();
                all.extend((head.len() as u16).to_le_bytes());
                all.extend(head.as_bytes());
                all.extend(bytes);
                all
            }
        };
        std::fs::write(&path, content).unwrap();
        let file = path.to_str().unwrap();
        let run = fmm(&["run", "--sources", file, "--strengths", file, "--threads", "1", "--json"]);
        let errors = String::from_utf8_lossy(&run.stderr).into_owned();
        prop_assert!(!errors.contains("panicked"), "{errors}");
        match run.status.code() {
            Some(0) => prop_assert!(serde_json::from_slice::<serde_json::Value>(&run.stdout).is_ok()),
            Some(1) => {
                prop_assert!(last_line(&run).starts_with("error: "), "{errors}");
                prop_assert!(run.stdout.is_empty());
            }
            other => prop_assert!(false, "ended with {other:?}: {errors}"),
        }
    }
}
