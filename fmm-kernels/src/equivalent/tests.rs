//! The testkit's properties for every family, and the parts against each other.

use super::*;
use crate::{Laplace, LaplaceDipole, Stokes, StokesPressure, Stresslet, Yukawa};
use fmm_traits::testkit::expansion::{Chain, Expected, SIDES, chain_error, check_expansion};
use fmm_traits::{Error, Family, Kernel, OutputColumns, Outputs, Visitor};
use std::marker::PhantomData;

type Plain<F, T> = EquivalentExpansion<F, T, <F as Family>::Source, <F as Family>::Far>;

fn table<F: Family, T: Scalar>(name: &str, family: F, orders: std::ops::RangeInclusive<usize>) {
    for p in orders {
        let t = std::time::Instant::now();
        let x = Plain::<F, T>::new(&family, p, &SIDES).unwrap();
        let t = t.elapsed().as_secs_f64();
        let errors: Vec<String> = Chain::ALL.iter().map(|&c| format!("{:.1e}", chain_error(&x, c))).collect();
        println!("{name} {} p {p}: {t:.3} s, {}", T::NAME, errors.join(" "));
    }
}

#[test]
fn tables() {
    println!("{:?}", Chain::ALL);
    table::<_, f64>("laplace", Laplace, 3..=12);
    table::<_, f32>("laplace", Laplace, 3..=10);
    table::<_, f64>("dipole", LaplaceDipole, 3..=8);
    table::<_, f64>("yukawa", Yukawa { kappa: 2.0 }, 3..=10);
    table::<_, f64>("yukawa20", Yukawa { kappa: 20.0 }, 3..=8);
    table::<_, f64>("stokes", Stokes { mu: 1.0 }, 3..=8);
    table::<_, f32>("stokes", Stokes { mu: 1.0 }, 3..=7);
    table::<_, f64>("stokesp", StokesPressure { mu: 1.0 }, 3..=7);
    table::<_, f64>("stresslet", Stresslet { mu: 1.0 }, 3..=7);
}
