//! The two-dimensional method of `adaptive2d`, executed fast: shifts and points run along the lanes, boxes in parallel.
//!
//! `adaptive2d::Laurent` under [`crate::pairwise`] has the plain form of every stage.

mod blocks;
mod direct;
mod m2l;
mod near;
mod points;
mod rows;
mod shifts;
mod stages;

pub use direct::direct;
pub use near::PlanePairs;

use crate::{Isa, admissible};
use adaptive2d::{Laurent, Pyramid};
use fmm_traits::{Error, Expansion, Lists, Observer, StageSeconds, evaluate};
use m2l::{Hankel, Terms};
use rayon::prelude::*;

/// The plan of the method in the plane: pyramid, edge lists and series of one set of points.
#[derive(Clone, Debug)]
pub struct LaurentPlan {
    pyramid: Pyramid,
    lists: Lists,
    series: Laurent,
    pairs: PlanePairs,
    hankel: Hankel,
    terms: Terms,
    isa: Isa,
    rough: bool,
}

/// The arrays between the stages. One workspace serves any number of applications, one after the other.
#[derive(Clone, Debug, Default)]
pub struct LaurentWorkspace {
    /// Charges, real and imaginary parts of poles in tree order. An array is empty if no source has such a strength.
    strengths: [Vec<f64>; near::STRENGTHS],
    /// Whether imaginary parts are left out, because all are zero.
    real: bool,
    multipoles: Vec<f64>,
    locals: Vec<f64>,
}

impl LaurentWorkspace {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let arrays = self.strengths.iter().chain([&self.multipoles, &self.locals]);
        arrays.map(|v| 8 * v.capacity() as u64).sum()
    }
}

/// Whether the discs of boxes `t` and `s` do not overlap, up to rounding. The series about one box then converge at the
/// points of the other box.
fn apart(pyramid: &Pyramid, t: usize, s: usize) -> bool {
    let (at, from) = (pyramid.center[t], pyramid.center[s]);
    let (x, y) = (from[0] - at[0], from[1] - at[1]);
    let reach = (pyramid.radius[t] + pyramid.radius[s]) * (1.0 - 1e-12);
    let square = x * x + y * y;
    // Squared distances decide, unless the square leaves the range of f64.
    let clear = square >= reach * reach && square > 1e-290 && square < f64::MAX;
    clear || (x.hypot(y) >= reach && [x, y] != [0.0; 2])
}

impl LaurentPlan {
    /// A plan for the kernel `pairs`, with the given edge `lists` and series of order `order`. Values carry derivatives
    /// up to the order `derivatives`, at most 2. If `rough`, the near field takes reciprocals to 28 bits, for
    /// tolerances of 1e-7 and above.
    ///
    /// # Errors
    /// - [`Error::Order`] as for [`Laurent::new`].
    /// - All errors of [`Pyramid::check`].
    /// - [`Error::Shape`] if the lists have another number of boxes than the pyramid.
    /// - [`Error::Edge`] for an edge of P2M, M2M, L2L, L2P, M2P or P2P between boxes that cannot have such an edge.
    /// - [`Error::Edge`] for an edge of M2L, P2L or M2P between boxes whose discs overlap. Series do not converge
    ///   there, for any θ of the lists.
    pub fn new(
        pairs: impl Into<PlanePairs>,
        (order, derivatives): (usize, usize),
        pyramid: Pyramid,
        lists: Lists,
        isa: Isa,
        rough: bool,
    ) -> Result<Self, Error> {
        let pairs = pairs.into();
        let series = Laurent::new(pairs.kernel, order, derivatives)?;
        pyramid.check()?;
        admissible::well_formed(pyramid.len(), &lists)?;
        admissible::at_their_boxes(&pyramid, &lists)?;
        for edges in [&lists.m2l, &lists.p2l, &lists.m2p] {
            let overlaps = |t: usize| edges.row(t).iter().find(|&&s| !apart(&pyramid, t, s as usize)).map(|&s| (t, s));
            if let Some((t, s)) = (0..pyramid.len()).into_par_iter().with_min_len(1 << 10).find_map_first(overlaps) {
                admissible::refuse("series of boxes whose discs overlap do not converge", t as u32, s)?;
            }
        }
        let (hankel, terms) = (Hankel::new(series.order), Terms::all(series.order));
        Ok(LaurentPlan { pyramid, lists, series, pairs, hankel, terms, isa, rough })
    }

    /// The same plan with fewer terms on the M2L edges that reach θ^p with fewer terms.
    pub fn shortened(self, theta: f64) -> Self {
        LaurentPlan { terms: Terms::reaching(theta, self.series.order), ..self }
    }

    /// Values per target ([`PlaneKernel::values`](adaptive2d::PlaneKernel::values)).
    pub fn values(&self) -> usize {
        self.series.values()
    }

    /// The kernel.
    pub fn kernel(&self) -> adaptive2d::PlaneKernel {
        self.series.kernel
    }

    /// The series, one pair of boxes at a time.
    pub fn series(&self) -> Laurent {
        self.series
    }

    /// Order of the series.
    pub fn order(&self) -> usize {
        self.series.order
    }

    /// The pyramid.
    pub fn pyramid(&self) -> &Pyramid {
        &self.pyramid
    }

    /// The edge lists.
    pub fn lists(&self) -> &Lists {
        &self.lists
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.pyramid.bytes() + self.lists.bytes()
    }

    /// Computes the sums of one set of strengths in the current rayon pool. `strengths` is sources ×
    /// [`PlaneKernel::strengths`](adaptive2d::PlaneKernel::strengths), `out` is targets × [`values`](LaurentPlan::values), both in the caller's order.
    /// `out` is overwritten. The bits do not depend on the number of threads.
    ///
    /// # Errors
    /// [`Error::Shape`] if an array has the wrong length, [`Error::Cancelled`].
    pub fn apply(
        &self,
        w: &mut LaurentWorkspace,
        strengths: &[f64],
        out: &mut [f64],
        observer: Observer,
    ) -> Result<StageSeconds, Error> {
        let shape = |array, found, expected, why: String| {
            if found == expected { Ok(()) } else { Err(Error::Shape { array, found, expected, why }) }
        };
        let (sources, targets) = (self.pyramid.sources.len(), self.pyramid.targets.len());
        shape("strengths", strengths.len(), sources * self.series.strengths(), format!("{sources} sources"))?;
        shape("out", out.len(), targets * self.values(), format!("{targets} targets"))?;
        let mut run = stages::Run { plan: self, w, strengths, out, seconds: StageSeconds::default() };
        evaluate(&mut run, &self.lists, observer)?;
        Ok(run.seconds)
    }

    /// Whether the kernel has logarithms, so that multipoles have a coefficient a_0.
    fn logarithms(&self) -> bool {
        self.series.kernel.charges()
    }
}
