//! Sets of strengths on a device, for the direct sums of a probe: `kernels/draw.cu`.

use crate::cut::Cut;
use crate::device::{Buffer, Device};
use crate::pinned::{in_threads, threads_for};
use fmm_traits::Error;

/// Several sets of strengths of the same sources, on a device.
#[derive(Debug)]
pub struct StrengthSets {
    /// The strengths, set by set.
    pub(crate) all: Buffer<f64>,
    /// Number of sets.
    pub(crate) sets: usize,
}

impl StrengthSets {
    /// Copies sets of strengths to the device. Several threads copy, because one thread would copy a set of a megabyte at a
    /// tenth of the speed of the bus.
    ///
    /// # Errors
    /// [`Error::Shape`] if the sets differ in length, and errors of the device.
    pub fn new(device: &Device, sets: &[&[f64]]) -> Result<Self, Error> {
        let (what, length) = ("strengths", sets.first().map_or(0, |set| set.len()));
        if let Some(other) = sets.iter().find(|set| set.len() != length) {
            let why = "as many numbers in each set".to_string();
            return Err(Error::Shape { array: what, found: other.len(), expected: length, why });
        }
        let there = StrengthSets { all: device.alloc(sets.len() * length, what)?, sets: sets.len() };
        // SAFETY: there is room for all sets, one behind the other.
        let send = |k: usize| unsafe { device.send(sets[k], there.address(k, length), what) };
        let threads = threads_for(sets.len());
        in_threads(threads, |t| (t..sets.len()).step_by(threads).try_for_each(send))?;
        Ok(there)
    }

    /// The address of a set. Each has `length` numbers.
    pub(crate) fn address(&self, set: usize, length: usize) -> u64 {
        self.all.address() + (size_of::<f64>() * set * length) as u64
    }
}

impl Cut<'_> {
    /// Sets of strengths, copied to the device of this tree: [`StrengthSets::new`].
    ///
    /// # Errors
    /// As there.
    pub fn strengths(&self, sets: &[&[f64]]) -> Result<StrengthSets, Error> {
        StrengthSets::new(self.device, sets)
    }

    /// Nearly normal strengths of sources that a sample has drawn, made on the device. A set has `components` numbers for each
    /// source, and a generator with its own seed. The numbers of a source are divided by the root of its `probability`.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn normal_strengths(
        &self,
        probability: &[f64],
        components: usize,
        seeds: &[u64],
    ) -> Result<StrengthSets, Error> {
        let (device, count, sets) = (self.device, probability.len(), seeds.len());
        let all: Buffer<f64> = device.alloc(sets * count * components, "strengths")?;
        let (seeds, probability) = (device.upload(seeds, "seeds")?, device.upload(probability, "probabilities")?);
        let args = [
            (&seeds).into(),
            (sets as u32).into(),
            (&probability).into(),
            (count as u32).into(),
            (components as u32).into(),
            (&all).into(),
        ];
        // SAFETY: arguments as in draw.cu; there is room for all sets.
        unsafe { self.draws()?.threads("normal_strengths", all.len().max(1), &args)? };
        Ok(StrengthSets { all, sets })
    }
}
