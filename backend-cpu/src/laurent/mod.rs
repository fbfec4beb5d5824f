//! The two-dimensional method of `adaptive2d`, fast: shifts and points along the lanes, rayon over boxes.
//!
//! The plain form of every stage is `adaptive2d::Laurent` under [`crate::pairwise`].

mod direct;
mod m2l;
mod near;
mod points;
mod rows;
mod shifts;
mod stages;

pub use direct::direct;

use crate::{Isa, admissible};
use adaptive2d::{Laurent, PlaneKernel, Pyramid};
use fmm_traits::{Error, Expansion, Lists, Observer, StageSeconds, evaluate};
use m2l::{Hankel, Terms};
use rayon::prelude::*;

/// Pyramid, lists and series of one set of points.
#[derive(Clone, Debug)]
pub struct LaurentPlan {
    pyramid: Pyramid,
    lists: Lists,
    series: Laurent,
    hankel: Hankel,
    terms: Terms,
    isa: Isa,
    rough: bool,
}

/// The arrays between the stages; one serves any number of applications, one after the other.
#[derive(Clone, Debug, Default)]
pub struct LaurentWorkspace {
    /// Strengths in tree order, one array a component.
    strengths: [Vec<f64>; 2],
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

/// Whether the discs of two boxes do not overlap, up to rounding: series about the one converge at the points of the other.
fn apart(pyramid: &Pyramid, t: usize, s: usize) -> bool {
    let (at, from) = (pyramid.center[t], pyramid.center[s]);
    let (x, y) = (from[0] - at[0], from[1] - at[1]);
    let reach = (pyramid.radius[t] + pyramid.radius[s]) * (1.0 - 1e-12);
    let square = x * x + y * y;
    // Squares tell where they are in range.
    let clear = square >= reach * reach && square > 1e-290 && square < f64::MAX;
    clear || (x.hypot(y) >= reach && [x, y] != [0.0; 2])
}

impl LaurentPlan {
    /// `rough`: reciprocals of the near field to 28 bits, for tolerances of 1e-7 and above.
    ///
    /// # Errors
    /// Those of [`Pyramid::check`]; [`Error::Shape`] when the lists are those of another number of boxes; [`Error::Edge`] for
    /// an edge of P2M, M2M, L2L, L2P, M2P or P2P that is not between boxes which have such edges, and for one of M2L, P2L or
    /// M2P between boxes whose discs overlap: there series do not converge, whatever θ the lists are of.
    pub fn new(pyramid: Pyramid, lists: Lists, series: Laurent, isa: Isa, rough: bool) -> Result<Self, Error> {
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
        Ok(LaurentPlan { pyramid, lists, series, hankel, terms, isa, rough })
    }

    /// The same with fewer terms on the M2L edges that need fewer than others to reach θ^p.
    pub fn shortened(self, theta: f64) -> Self {
        LaurentPlan { terms: Terms::reaching(theta, self.series.order), ..self }
    }

    /// Values per target: those of [`PlaneKernel::values`].
    pub fn values(&self) -> usize {
        self.series.kernel.values(self.series.gradient)
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

    /// Sums for one set of strengths (sources × [`PlaneKernel::strengths`], the caller's order) into `out`
    /// (targets × [`values`](LaurentPlan::values), the caller's order, overwritten), in the current rayon pool.
    /// The bits do not depend on the number of threads.
    ///
    /// # Errors
    /// [`Error::Shape`] when an array does not fit, [`Error::Cancelled`].
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

    /// Whether the kernel has logarithms.
    fn logarithms(&self) -> bool {
        self.series.kernel == PlaneKernel::Laplace
    }
}
