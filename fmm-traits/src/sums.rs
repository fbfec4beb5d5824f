//! Types that callers and backends share: targets, precision, list policy, and the solver that computes sums.

use crate::driver::{Observer, Stage};
use crate::error::Error;
use crate::kernel::OutputColumns;
use crate::lane::Real;

/// The precision of the arithmetic, or the type of numbers of the caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Precision {
    /// Single precision.
    F32,
    /// Double precision.
    F64,
}

impl Precision {
    /// `"f32"` or `"f64"`.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::F64 => "f64",
        }
    }
    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            Precision::F32 => 4,
            Precision::F64 => 8,
        }
    }
}

/// Numbers of a caller in either precision.
#[derive(Clone, Copy, Debug)]
pub enum Numbers<'a> {
    /// In single precision.
    F32(&'a [f32]),
    /// In double precision.
    F64(&'a [f64]),
}

impl Numbers<'_> {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Numbers::F32(x) => x.len(),
            Numbers::F64(x) => x.len(),
        }
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Their precision.
    pub fn precision(&self) -> Precision {
        match self {
            Numbers::F32(_) => Precision::F32,
            Numbers::F64(_) => Precision::F64,
        }
    }
}

/// Numbers of a caller in either precision, to be overwritten.
#[derive(Debug)]
pub enum NumbersMut<'a> {
    /// In single precision.
    F32(&'a mut [f32]),
    /// In double precision.
    F64(&'a mut [f64]),
}

impl NumbersMut<'_> {
    /// The same numbers, to be read.
    pub fn read(&self) -> Numbers<'_> {
        match self {
            NumbersMut::F32(x) => Numbers::F32(x),
            NumbersMut::F64(x) => Numbers::F64(x),
        }
    }
}

/// A type of numbers that a caller may pass: `f32` or `f64`.
pub trait Number: Real {
    /// Its precision.
    const PRECISION: Precision;
    /// Numbers to be read.
    fn numbers(of: &[Self]) -> Numbers<'_>;
    /// Numbers to be overwritten.
    fn numbers_mut(of: &mut [Self]) -> NumbersMut<'_>;
}

impl Number for f32 {
    const PRECISION: Precision = Precision::F32;
    fn numbers(of: &[f32]) -> Numbers<'_> {
        Numbers::F32(of)
    }
    fn numbers_mut(of: &mut [f32]) -> NumbersMut<'_> {
        NumbersMut::F32(of)
    }
}

impl Number for f64 {
    const PRECISION: Precision = Precision::F64;
    fn numbers(of: &[f64]) -> Numbers<'_> {
        Numbers::F64(of)
    }
    fn numbers_mut(of: &mut [f64]) -> NumbersMut<'_> {
        NumbersMut::F64(of)
    }
}

/// The targets of the sums.
#[derive(Clone, Copy, Debug)]
pub enum Targets<'a> {
    /// All sources. Each target skips itself, by its index, unless sources act on themselves.
    Sources,
    /// The sources with these indices, in this order. Each target skips itself, as for all sources.
    Subset(&'a [usize]),
    /// Separate points, M×3 (in the plane M×2). A source at the same position as a target contributes zero if the
    /// kernel is singular.
    Points(&'a [f64]),
}

impl Targets<'_> {
    /// The number of targets, for `n_sources` sources and points of `dim` coordinates.
    pub fn count(&self, n_sources: usize, dim: usize) -> usize {
        match self {
            Targets::Sources => n_sources,
            Targets::Subset(s) => s.len(),
            Targets::Points(t) => t.len() / dim,
        }
    }
}

impl<'a> From<&'a [f64]> for Targets<'a> {
    fn from(points: &'a [f64]) -> Self {
        Targets::Points(points)
    }
}
impl<'a> From<&'a Vec<f64>> for Targets<'a> {
    fn from(points: &'a Vec<f64>) -> Self {
        Targets::Points(points)
    }
}
impl<'a, const N: usize> From<&'a [f64; N]> for Targets<'a> {
    fn from(points: &'a [f64; N]) -> Self {
        Targets::Points(points)
    }
}

/// The list policy of an octree: the rule that decides which boxes interact, and how.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Policy {
    /// U, V, W and X lists (Lashuk et al. 2009, §II).
    Uvwx,
    /// U, V, W and X lists with 119 translations per box instead of 189 (Gumerov & Duraiswami 2008, §2.2.3).
    Stencil119,
    /// Multipoles straight to targets (Barnes & Hut 1986).
    Treecode {
        /// Opening angle: a target at distance d sees a box of side l as a whole if l ≤ θ·d.
        theta: f64,
    },
}

impl Policy {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Uvwx => "uvwx",
            Policy::Stencil119 => "stencil119",
            Policy::Treecode { .. } => "treecode",
        }
    }
    /// The opening angle of a treecode.
    pub fn theta(self) -> Option<f64> {
        if let Policy::Treecode { theta } = self { Some(theta) } else { None }
    }
}

/// Seconds spent in each stage, indexed by `Stage as usize`.
pub type StageSeconds = [f64; Stage::ALL.len()];

/// Returns [`Error::Shape`] unless there is one output for each set of strengths.
///
/// # Errors
/// [`Error::Shape`].
pub fn check_sets(strengths: &[&[f64]], out: &[&mut [f64]]) -> Result<(), Error> {
    let (found, expected) = (out.len(), strengths.len());
    if found == expected {
        return Ok(());
    }
    let why = "one output for each set of strengths".to_string();
    Err(Error::Shape { array: "out", found, expected, why })
}

/// Applies `apply` to several sets of strengths, one after the other. Returns the sum of the seconds.
///
/// # Errors
/// [`Error::Shape`] for another number of outputs, and errors of `apply`.
pub fn one_by_one(
    strengths: &[&[f64]],
    out: &mut [&mut [f64]],
    mut apply: impl FnMut(&[f64], &mut [f64]) -> Result<StageSeconds, Error>,
) -> Result<StageSeconds, Error> {
    check_sets(strengths, out)?;
    let mut seconds = StageSeconds::default();
    for (strengths, out) in strengths.iter().zip(out) {
        let once = apply(strengths, out)?;
        seconds.iter_mut().zip(once).for_each(|(sum, s)| *sum += s);
    }
    Ok(seconds)
}

/// Prepared sums, ready for strengths: points, lists, operators and workspaces of one kernel and set of outputs. The
/// trait has no type parameters, so all kernels share it.
///
/// `apply` may be called from several threads at once.
pub trait Solver: Send + Sync {
    /// Values per target in the output of [`apply`](Solver::apply).
    fn values(&self) -> usize;
    /// The columns of each requested output among the values.
    fn columns(&self) -> &[OutputColumns];
    /// Computes the sums for one set of strengths (sources × strengths of the kernel) into `out` (targets × values),
    /// both in the caller's order. A CPU solver runs in the current rayon pool; the number of threads changes no bit.
    ///
    /// # Errors
    /// [`Error::Shape`] for wrong lengths, [`Error::Cancelled`] by the observer, and errors of a device.
    fn apply(&self, strengths: &[f64], out: &mut [f64], observer: Observer) -> Result<StageSeconds, Error>;
    /// [`apply`](Solver::apply) for several sets of strengths into as many `out`, with the same bits.
    ///
    /// # Errors
    /// As [`apply`](Solver::apply).
    fn apply_batch(
        &self,
        strengths: &[&[f64]],
        out: &mut [&mut [f64]],
        observer: Observer,
    ) -> Result<StageSeconds, Error> {
        one_by_one(strengths, out, |strengths, out| self.apply(strengths, out, &mut *observer))
    }
    /// Number of sets of strengths that share work in [`apply_batch`](Solver::apply_batch).
    fn together(&self) -> usize {
        1
    }
    /// Additional bytes for each further set of strengths in [`apply_batch`](Solver::apply_batch).
    fn bytes_of_a_set(&self) -> u64 {
        0
    }
    /// Bytes held in the memory of the computing device, one workspace included.
    fn bytes(&self) -> u64;
}
