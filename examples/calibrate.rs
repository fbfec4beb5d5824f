//! Measures the error table of `src/tuning.rs` and prints it as Rust source.
//!
//! `cargo run --release --example calibrate [N] [LARGEST ORDER] [kernel …]`: for each family, order and output the
//! largest relative ℓ2 error against direct summation at 1000 random targets, over the clouds of
//! the testkit and over strengths uniform in (0, 1) and normal. Orders beyond the largest measured are left to
//! extrapolation (operators of vector kernels take a minute each there).

use fmm::{
    AnyFamily, Fmm, Gravity, Laplace, LaplaceDipole, LaplaceMixed, Method, Outputs, Stokes, StokesPressure, Stresslet,
    Targets, Yukawa, demo, tuning,
};
use fmm_traits::testkit::clouds::CloudKind;

fn main() -> Result<(), fmm::Error> {
    let mut args = std::env::args().skip(1).peekable();
    let mut number =
        |default| args.next_if(|a| a.parse::<usize>().is_ok()).map_or(default, |a| a.parse().unwrap_or(default));
    let (n, largest) = (number(10_000), number(tuning::MAX_ORDER).min(tuning::MAX_ORDER));
    let wanted: Vec<String> = args.collect();
    let (all, flow) = (Outputs::POTENTIAL | Outputs::GRADIENT | Outputs::HESSIAN, Outputs::PRESSURE);
    let families: [(AnyFamily, Outputs); 8] = [
        (Laplace.into(), all),
        (LaplaceDipole.into(), all),
        (LaplaceMixed.into(), all),
        (Yukawa { kappa: 5.0 }.into(), all),
        (Gravity { g: 1.0, softening: 0.0 }.into(), all),
        (Stokes { mu: 1.0 }.into(), all),
        (StokesPressure { mu: 1.0 }.into(), all | flow),
        (Stresslet { mu: 1.0 }.into(), all | flow),
    ];
    for (family, outputs) in families {
        if !wanted.is_empty() && !wanted.iter().any(|w| w == family.name()) {
            continue;
        }
        // worst[output][order]
        let mut worst = [[0.0f64; tuning::MAX_ORDER + 1]; 4];
        for order in tuning::MIN_ORDER..=largest {
            for (k, kind) in CloudKind::ALL.into_iter().enumerate() {
                let x = kind.points(n, k as u64);
                let builder = Fmm::new(family.clone()).outputs(outputs).order(order);
                let plan = builder.method(Method::EquivalentDensities).plan(&x, Targets::Sources)?;
                let c = plan.strengths();
                for q in [demo::strengths(x.len() / 3, c, 3), demo::normal_strengths(x.len() / 3, c, 3)] {
                    for e in plan.verify(&q, 1000)?.outputs {
                        for (i, (output, _)) in Outputs::ALL.into_iter().enumerate() {
                            if output == e.output {
                                worst[i][order] = worst[i][order].max(e.rel_l2);
                            }
                        }
                        if order % 4 == 0 {
                            eprintln!(
                                "{} p={order} {} {:?} {:.1e}",
                                family.name(),
                                kind.name(),
                                e.output.names(),
                                e.rel_l2
                            );
                        }
                    }
                }
            }
        }
        println!("Row {{\n    kernel: \"{}\",\n    errors: [", family.name());
        for errors in worst {
            let logs: Vec<String> =
                errors[tuning::MIN_ORDER..=largest].iter().map(|e| format!("{:.2}", e.max(1e-16).log10())).collect();
            println!("        [{}],", logs.join(", "));
        }
        println!("    ],\n}},");
    }
    Ok(())
}
