//! Placed points on a device, as the probe sees them. The device draws leaves by their weights.

use crate::probe::corners::Weights;
use crate::probe::draw::Span;
use crate::probe::sampled::{Direct, End, HALF_CORNER_POWER, Kinds, Request, Row, Sampled};
use crate::probe::sources::{Chances, Sources};
use backend_cuda::{CallerPoints, Class, Cut, LeafFields, NearAndClose, Numbers, PointWeights, Shares, StrengthSets};
use fmm_traits::Error;
use fmm_tree::{DISTANCES, Leaf};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// A function that computes direct sums in f64 on the device of a [`Cut`].
pub(crate) type SumsOnDevice<'a> =
    &'a (dyn Fn(CallerPoints, &StrengthSets, CallerPoints) -> Result<Vec<Vec<f64>>, Error> + Sync);

/// Placed points on the device, for a sample.
pub(crate) struct OnDevice<'a> {
    pub cut: Cut<'a>,
    pub direct: SumsOnDevice<'a>,
    /// [`Mesh::corners`](crate::mesh::Mesh::corners) of these points. The first draw of targets sets it.
    pub corners: &'a OnceLock<f64>,
}

/// The mean over the targets, from the sum over all of them.
pub(super) fn mean_over_targets(cut: &Cut, sum: f64) -> f64 {
    sum / cut.counts()[1].max(1) as f64
}

/// The weights of points as the device knows them.
fn corners(weights: &Weights<Numbers>) -> PointWeights<'_> {
    PointWeights { sums: &weights.sums, mean: weights.mean }
}

/// Leaves in a row on the device.
struct DeviceRow<'a> {
    cut: &'a Cut<'a>,
    row: backend_cuda::Row,
    fields: LeafFields<'a>,
}

impl Row for DeviceRow<'_> {
    fn lengths(&self) -> BTreeMap<u64, Span> {
        let length = |class: &Class| Span { before: 0, all: class.units.end - class.units.start };
        self.row.classes.iter().map(|class| (class.code, length(class))).collect()
    }

    fn at(&self, rows: &[Request]) -> Result<Vec<Vec<(usize, Leaf)>>, Error> {
        // The places of all rows, counted from the start of this row.
        let (mut all, mut counts) = (Vec::new(), Vec::new());
        for Request { classes, places } in rows {
            let (before, mut start) = (all.len(), 0);
            let mut places = &places[..];
            for code in classes {
                let Some(class) = self.row.classes.iter().find(|class| class.code == *code) else { continue };
                let end = start + (class.units.end - class.units.start);
                let (here, later) = places.split_at(places.partition_point(|&place| place < end));
                all.extend(here.iter().map(|place| class.units.start + (place - start)));
                (start, places) = (end, later);
            }
            counts.push(all.len() - before);
        }
        let mut leaves = self.cut.at(&self.row, &all, self.fields)?.into_iter();
        Ok(counts.into_iter().map(|count| leaves.by_ref().take(count).enumerate().collect()).collect())
    }
}

impl Kinds for DeviceRow<'_> {
    fn counts(&self) -> BTreeMap<u64, [usize; 2]> {
        let counts = |class: &Class| [class.targets as usize, class.leaves.len()];
        self.row.classes.iter().map(|class| (class.code, counts(class))).collect()
    }

    fn leaves(&self) -> Result<Vec<(u64, Leaf)>, Error> {
        let classes = self.row.classes.iter().flat_map(|class| std::iter::repeat_n(class.code, class.leaves.len()));
        Ok(classes.zip(self.cut.leaves_of(&self.row, self.fields)?).collect())
    }
}

impl Sampled for OnDevice<'_> {
    type Numbers = Numbers;
    type NearAndClose = NearAndClose;

    fn count(&self, of: End) -> usize {
        match of {
            End::Sources => self.cut.counts()[0],
            End::Targets => self.cut.counts()[1],
        }
    }

    fn same_points(&self) -> bool {
        self.cut.same_points()
    }

    fn root_side(&self) -> f64 {
        self.cut.root_side()
    }

    fn corner_sums(&self, of: End) -> Result<(Numbers, Option<f64>), Error> {
        let (sums, all) = self.cut.corner_sums(of == End::Sources, HALF_CORNER_POWER)?;
        if of == End::Targets {
            self.corners.get_or_init(|| mean_over_targets(&self.cut, all));
        }
        Ok((sums, Some(all).filter(|all| *all > 0.0 && all.is_finite())))
    }

    fn far_factors(&self, weights: &[[f64; DISTANCES]], half_power: u32) -> Result<Option<Numbers>, Error> {
        self.cut.far_factors(weights, half_power)
    }

    fn by_kind<'a>(
        &'a self,
        weights: &'a Weights<Numbers>,
        factors: Option<&'a Numbers>,
        targets: usize,
    ) -> Result<Box<dyn Kinds + 'a>, Error> {
        let row = self.cut.by_kind(corners(weights), factors, targets)?;
        Ok(Box::new(DeviceRow { cut: &self.cut, row, fields: LeafFields { factors, ..LeafFields::default() } }))
    }

    fn near_and_close(&self, leaves: &[u32]) -> Result<NearAndClose, Error> {
        self.cut.near_and_close(leaves)
    }

    fn weights_of_sources(&self, weights: &Weights<Numbers>, near_and_close: &NearAndClose) -> Result<[f64; 2], Error> {
        let sums = self.cut.weights_of_sources(corners(weights), near_and_close)?;
        Ok(sums.map(|all| Span { before: 0, all }.sum()))
    }

    fn by_chance<'a>(
        &'a self,
        weights: &'a Weights<Numbers>,
        near_and_close: &'a NearAndClose,
        chances: &'a Chances,
    ) -> Result<Box<dyn Row + 'a>, Error> {
        let &Chances { share, share_of_close, of_a_leaf, takes_near, .. } = chances;
        let shares = Shares { share, share_of_close, of_a_leaf: of_a_leaf as u32, takes_near };
        let row = self.cut.by_chance(corners(weights), near_and_close, shares)?;
        let fields = LeafFields { corners: Some(&weights.sums), near_and_close: Some(near_and_close), factors: None };
        Ok(Box::new(DeviceRow { cut: &self.cut, row, fields }))
    }

    fn leaves_with_sources(&self, near_and_close: &NearAndClose, all: bool) -> Result<Vec<Leaf>, Error> {
        self.cut.leaves_with_sources(
            near_and_close,
            all,
            LeafFields { near_and_close: Some(near_and_close), ..LeafFields::default() },
        )
    }

    fn points(&self, of: End, positions: &[u32]) -> Result<Vec<[f64; 3]>, Error> {
        let [x, y, z] = match of {
            End::Sources => self.cut.sources(positions)?,
            End::Targets => self.cut.targets(positions)?,
        };
        Ok(x.into_iter().zip(y).zip(z).map(|((x, y), z)| [x, y, z]).collect())
    }

    fn indices(&self, positions: &[u32]) -> Result<Vec<u32>, Error> {
        self.cut.source_indices(positions)
    }

    fn sums(
        &self,
        sources: &[u32],
        strengths: &[&[f64]],
        targets: &[u32],
        _: (usize, Direct),
    ) -> Result<Vec<Vec<f64>>, Error> {
        let set_bytes = strengths.first().map_or(1, |set| size_of_val(*set).max(1));
        let mut rows = Vec::new();
        for sets in strengths.chunks((StrengthSets::BYTES_PER_CALL / set_bytes).max(1)) {
            let sets = self.cut.strengths(sets)?;
            rows.extend((self.direct)(self.cut.some_sources(sources)?, &sets, self.cut.some_targets(targets)?)?);
        }
        Ok(rows)
    }

    /// The device computes one kind after the other. Another thread makes the small tree in steps, and a step waits for all sums
    /// that were enqueued before it. So the long sums come last.
    fn both_sums<A: Send, B: Send>(
        &self,
        first: impl FnOnce() -> A + Send,
        second: impl FnOnce() -> B + Send,
    ) -> (A, B) {
        (first(), second())
    }

    fn sums_of_normal(
        &self,
        Sources { positions, probability }: &Sources,
        (sets, components): (usize, usize),
        targets: &[u32],
        _: (usize, Direct),
    ) -> Result<Vec<Vec<f64>>, Error> {
        let seeds: Vec<u64> = (0..sets).map(Sources::seed_of_normal).collect();
        let strengths = self.cut.normal_strengths(probability, components, &seeds)?;
        (self.direct)(self.cut.some_sources(positions)?, &strengths, self.cut.some_targets(targets)?)
    }
}
