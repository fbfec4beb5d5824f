//! The capacitance of a prolate spheroid: GMRES solves a boundary-integral equation, with a plan as the matrix.
//!
//! A conductor at potential 1 carries the charge density σ with ∫ σ(y)/(4π|x − y|) dS = 1 on its surface. The
//! capacitance of the conductor is ∫ σ dS (ε₀ = 1). Collocation at nodes xᵢ of area wᵢ gives the equations
//! Σⱼ wⱼσⱼ/(4π|xᵢ − xⱼ|) + sᵢσᵢ = 1. The plan skips j = i. The factor sᵢ = ½√(wᵢ/π) stands for the skipped term: it is
//! the potential at the centre of a flat disc of area wᵢ. This rule is of first order in the distance of nodes,
//! N^(−1/2).
//!
//! `cargo run --release --example 05_boundary_integral`

use fmm::{Error, Fmm, Laplace, Method, Targets};
use nalgebra::{DMatrix, DVector};
use std::f64::consts::PI;

/// The two short semi-axes of the spheroid.
const SHORT_AXIS: f64 = 0.5;
/// The long semi-axis.
const LONG_AXIS: f64 = 1.0;

/// Nodes (n×3) on the spheroid and their areas. The nodes form a golden spiral on the sphere, which is then stretched.
fn nodes(n: usize) -> (Vec<f64>, DVector<f64>) {
    let golden = PI * (3.0 - 5f64.sqrt());
    let mut points = Vec::with_capacity(3 * n);
    let mut areas = DVector::zeros(n);
    for i in 0..n {
        let z = 1.0 - (2 * i + 1) as f64 / n as f64;
        let (s, phi) = ((1.0 - z * z).sqrt(), golden * i as f64);
        points.extend([SHORT_AXIS * s * phi.cos(), SHORT_AXIS * s * phi.sin(), LONG_AXIS * z]);
        areas[i] = 4.0 * PI / n as f64 * SHORT_AXIS * (LONG_AXIS * s).hypot(SHORT_AXIS * z);
    }
    (points, areas)
}

/// Solves A x = b to a relative residual of `tolerance`; returns x and the number of products.
fn gmres(
    a: impl Fn(&DVector<f64>) -> Result<DVector<f64>, Error>,
    b: &DVector<f64>,
    tolerance: f64,
    most: usize,
) -> Result<(DVector<f64>, usize), Error> {
    let mut basis = vec![b / b.norm()];
    let mut h = DMatrix::zeros(most + 1, most);
    for k in 0..most {
        let mut v = a(&basis[k])?;
        for (i, q) in basis.iter().enumerate() {
            h[(i, k)] = q.dot(&v);
            v.axpy(-h[(i, k)], q, 1.0);
        }
        h[(k + 1, k)] = v.norm();
        basis.push(&v / v.norm());

        // min ‖b‖ ‖e₁ − H y‖ through QR.
        let small = h.view((0, 0), (k + 2, k + 1)).into_owned();
        let mut e = DVector::zeros(k + 2);
        e[0] = b.norm();
        let qr = small.clone().qr();
        let y = qr.r().solve_upper_triangular(&(qr.q().transpose() * &e)).expect("H has full rank");
        if (e - small * &y).norm() <= tolerance * b.norm() {
            let mut x = DVector::zeros(b.len());
            basis.iter().zip(y.iter()).for_each(|(q, &c)| x.axpy(c, q, 1.0));
            return Ok((x, k + 1));
        }
    }
    panic!("no convergence in {most} products");
}

/// The capacitance with n nodes.
fn capacitance(n: usize) -> Result<f64, Error> {
    let (points, areas) = nodes(n);
    let plan = Fmm::new(Laplace).tolerance(1e-7).method(Method::EquivalentDensities).plan(&points, Targets::Sources)?;
    let own = areas.map(|w| 0.5 * (w / PI).sqrt());
    let product = |sigma: &DVector<f64>| -> Result<DVector<f64>, Error> {
        let others = plan.apply(sigma.component_mul(&areas).as_slice())?.potential;
        Ok(DVector::from_vec(others) + own.component_mul(sigma))
    };
    let (sigma, products) = gmres(product, &DVector::from_element(n, 1.0), 1e-6, 60)?;
    println!("{n} nodes: {products} products, capacitance {:.5}", sigma.dot(&areas));
    Ok(sigma.dot(&areas))
}

fn main() -> Result<(), Error> {
    let focus = (LONG_AXIS * LONG_AXIS - SHORT_AXIS * SHORT_AXIS).sqrt();
    let exact = 4.0 * PI * focus / (LONG_AXIS / SHORT_AXIS).acosh();
    println!("exact: {exact:.5}");
    let errors = [2_500, 10_000].map(|n| capacitance(n).map(|c| (c / exact - 1.0).abs()));
    let [coarse, fine] = errors;
    let (coarse, fine) = (coarse?, fine?);
    println!("relative errors {coarse:.1e}, {fine:.1e}");
    assert!(coarse < 3e-3);
    assert!((0.4..0.6).contains(&(fine / coarse)), "four times the nodes halve the error");
    Ok(())
}
