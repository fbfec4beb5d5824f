//! The sums by which a plan on a device measures errors: direct sums, and those of a small tree.

use super::site::{Site, mesh_of};
use super::{Device, OnDevice, method, timed};
use crate::engine::{drawn_of, not_placed, sums_of, trial_of, trial_with};
use crate::probe::Trial;
use crate::probe::sample::Sample;
use backend_cuda::{CallerPoints, DeviceSolver, Ground, Settings, StrengthSets};
use fmm_traits::{Error, Precision};
use std::sync::Arc;

/// The sums of a solver at the targets of a sample.
pub(super) struct SmallSums {
    pub solver: Box<dyn DeviceSolver>,
    /// The rows of each set of strengths.
    pub rows: Vec<Vec<f64>>,
    /// Seconds of making operators, and of placing the small tree.
    pub operators: [f64; 2],
}

impl Device {
    /// Direct sums of sets of strengths at separate points: the rows of each set.
    pub(super) fn sums_at(
        &self,
        sources: CallerPoints,
        strengths: &StrengthSets,
        targets: CallerPoints,
    ) -> Result<Vec<Vec<f64>>, Error> {
        let r = &self.request;
        let device = self.cuda.open(r.cache.as_ref())?;
        r.family.in_space(r.outputs)?.device_sums_at(&device, (sources, targets), strengths)
    }

    /// Loads the program of direct sums ahead. An error is ignored: the sums load the program again and return it.
    fn load_sums(&self) {
        let r = &self.request;
        let load = |device| r.family.in_space(r.outputs)?.load_device_sum(&device);
        let _ = self.cuda.open(r.cache.as_ref()).and_then(load);
    }

    /// The sample of new points on which errors are measured, drawn or kept.
    pub(super) fn trial(&self, site: &mut Site, settings: &Settings) -> Result<Arc<Trial>, Error> {
        let edges = mesh_of(&site.placed.sizes(settings)?, site.placed.report()).edges.of_points();
        if let Some(kept) = site.trial(settings.policy, edges) {
            return Ok(kept);
        }
        let direct = |s, q: &StrengthSets, t| self.sums_at(s, q, t);
        let there = OnDevice { cut: site.placed.cut(settings)?, direct: &direct, corners: &site.corners };
        let trial = trial_of(&self.request, &self.choice, &there, self.near_errs())?;
        Ok(site.keep(settings.policy, edges, trial))
    }

    /// The sums of a sample by a solver of an order, or why there are none; and the trial of the sample, unless it is
    /// `kept` from before. `ground` is that of the points.
    ///
    /// Each step leaves most of the device idle, so steps run side by side. First one thread makes operators, another draws the
    /// sample, and a third loads the program of direct sums. Then one computes direct sums while another computes the sums of
    /// the small tree. Without a sample to draw, the small tree is made beside the operators.
    pub(super) fn sums_of_sample(
        &self,
        order: usize,
        ground: &Ground,
        there: &OnDevice<'_>,
        kept: Option<&Trial>,
    ) -> Result<(Result<SmallSums, Error>, Option<Trial>), Error> {
        let (request, choice, parts) = (&self.request, &self.choice, &self.parts);
        let cut = &there.cut;
        let thin = |sample: &Sample| cut.thin([&sample.of_errors.positions, &sample.targets]);
        let (mut made, mut sums) = ((not_placed(), 0.0), not_placed());
        let (drawn, small) = rayon::in_place_scope(|scope| {
            scope.spawn(|_| made = timed(|| method(request, parts, order, ground)));
            let drawn = match kept {
                Some(trial) => trial.drawn.clone(),
                None => {
                    scope.spawn(|_| self.load_sums());
                    drawn_of(request, choice, there, self.near_errs())?
                }
            };
            let small = kept.map(|_| thin(&drawn.sample)).transpose()?;
            Ok::<_, Error>((drawn, small))
        })?;
        let (method, made) = (made.0?, made.1);
        let small_sums = || {
            let small = small.map_or_else(|| thin(&drawn.sample), Ok)?;
            let (solver, placed) = timed(|| method.place(small));
            let solver = solver?;
            let rows = sums_of(choice, &drawn, &*solver, &drawn.strengths)?;
            Ok(SmallSums { solver, rows, operators: [made, placed] })
        };
        let fresh = rayon::in_place_scope(|scope| {
            scope.spawn(|_| sums = small_sums());
            kept.is_none().then(|| trial_with(drawn.clone(), request, choice, there)).transpose()
        })?;
        Ok((sums, fresh))
    }

    /// Whether near pairs are summed with less than the precision of f64.
    fn near_errs(&self) -> bool {
        self.request.precision == Precision::F32
    }
}
