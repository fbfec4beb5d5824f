//! A user-defined Green's function: heat conduction in a crystal whose conductivity differs along x, y and z. With
//! conductivities k, the equation −∇·(k∇u) = q δ has the solution q / (4π √(kx ky kz) √(x²/kx + y²/ky + z²/kz)).
//!
//! One function and four facts suffice for direct sums, the fast method, f32 and f64, SIMD, and (from dual numbers) the
//! gradient.
//!
//! `cargo run --release --example 02_own_kernel`

use fmm::{AnyFamily, Error, Fmm, Kernel, Lane, Laplace, Method, Outputs, Targets, demo};
use fmm_traits::testkit::kernel::{check_equation, check_kernel};
use std::f64::consts::PI;

#[derive(Clone, Debug)]
struct Crystal {
    k: [f64; 3],
}

impl Kernel for Crystal {
    const NAME: &'static str = "crystal";

    #[inline(always)] // into the function that enables the vector instructions
    fn eval<V: Lane>(p: &[V], r: &[V], q: &[V], u: &mut [V]) {
        u[0] = q[0] * (p[0] * r[0] * r[0] + p[1] * r[1] * r[1] + p[2] * r[2] * r[2]).rsqrt();
    }
    fn value_degree(_: usize) -> i32 {
        -1 // u(2r) = u(r)/2: homogeneous, so one set of operators serves all levels
    }
    fn parameters(&self) -> Vec<f64> {
        self.k.map(f64::recip).to_vec()
    }
    fn scale(&self) -> f64 {
        0.25 / (PI * self.k.iter().product::<f64>().sqrt())
    }
}

fn main() -> Result<(), Error> {
    let crystal = Crystal { k: [1.0, 1.5, 2.0] };

    // The author of a kernel runs two checks once: the facts of the kernel, and its differential equation.
    check_kernel(&crystal).expect("the facts are those of the function");
    check_equation::<Crystal>(&Kernel::parameters(&crystal), |u| {
        vec![(0..3).map(|a| crystal.k[a] * u[0].hessian[a][a]).sum()]
    })
    .expect("∇·(k∇u) = 0 away from the source");

    let (n, tolerance) = (50_000, 1e-5);
    let points = demo::points(demo::Demo::Uniform, n, 1);
    let heat = demo::strengths(n, 1, 1);
    let request = |kernel: AnyFamily| {
        Fmm::new(kernel)
            .tolerance(tolerance)
            .outputs(Outputs::POTENTIAL | Outputs::GRADIENT)
            .method(Method::EquivalentDensities)
            .plan(&points, Targets::Sources)
    };
    let own = request(AnyFamily::new(crystal))?;
    let error = own.verify(&heat, 1000)?.worst();
    println!("{n} sources of heat, worst relative ℓ2 error {error:.1e}");
    assert!(error <= tolerance);

    // The crystal takes somewhat longer: its gradient is made from dual numbers, that of the built-in kernel is written
    // by hand, and it has more operations.
    let laplace = request(Laplace.into())?;
    let mut seconds = [f64::INFINITY; 2];
    for _ in 0..3 {
        for (least, plan) in seconds.iter_mut().zip([&own, &laplace]) {
            *least = least.min(plan.apply(&heat)?.seconds);
        }
    }
    println!("one evaluation: {:.3} s, built-in Laplace {:.3} s", seconds[0], seconds[1]);
    Ok(())
}
