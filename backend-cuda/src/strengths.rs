//! Sets of strengths on a device, for several sums of the same sources. Normal strengths are drawn by `kernels/draw.cu`.

use crate::array::refused;
use crate::cut::Cut;
use crate::device::{Arg, Buffer, Device};
use crate::pinned::{in_threads, threads_for};
use crate::transfer::MIN_STAGED_BYTES;
use fmm_traits::Error;

/// Several sets of strengths of the same sources, on a device.
#[derive(Debug)]
pub struct StrengthSets {
    device: Device,
    /// The strengths, set by set.
    all: Buffer<f64>,
    sets: usize,
    /// Numbers of a set.
    length: usize,
}

impl StrengthSets {
    /// A caller whose sets have more bytes than this sends them in several calls.
    pub const BYTES_PER_CALL: usize = 1 << 24;

    /// Copies sets of strengths to the device. Several threads copy, because one thread would copy a set of a megabyte at a
    /// tenth of the speed of the bus.
    ///
    /// # Errors
    /// [`Error::Shape`] if the sets differ in length, and errors of the device.
    pub fn new(device: &Device, sets: &[&[f64]]) -> Result<Self, Error> {
        let there = StrengthSets::sent(device, sets)?;
        if size_of::<f64>() * there.length < MIN_STAGED_BYTES {
            // Small sets go without pinned buffers. If the caller's memory is page-locked, the driver may still read it.
            device.synchronize()?;
        }
        Ok(there)
    }

    /// As [`new`](StrengthSets::new), for a caller that waits for the device before the sets may change.
    pub(crate) fn sent(device: &Device, sets: &[&[f64]]) -> Result<Self, Error> {
        let (what, length) = ("strengths", sets.first().map_or(0, |set| set.len()));
        if let Some(other) = sets.iter().find(|set| set.len() != length) {
            let why = "as many numbers in each set".to_string();
            return Err(Error::Shape { array: what, found: other.len(), expected: length, why });
        }
        let all = device.alloc(sets.len() * length, what)?;
        let there = StrengthSets { device: device.clone(), all, sets: sets.len(), length };
        // SAFETY: there is room for all sets, one behind the other.
        let send = |k: usize| unsafe { device.send(sets[k], there.address(k), what) };
        let threads = threads_for(sets.len());
        in_threads(threads, |t| (t..sets.len()).step_by(threads).try_for_each(send))?;
        Ok(there)
    }

    /// Number of sets.
    pub fn sets(&self) -> usize {
        self.sets
    }

    /// Numbers of a set.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The address of a set.
    pub(crate) fn address(&self, set: usize) -> u64 {
        self.all.address() + (size_of::<f64>() * set * self.length) as u64
    }

    /// A set, for a kernel.
    pub(crate) fn set(&self, set: usize) -> Arg {
        self.all.at(set * self.length)
    }

    /// Checks that the sets are on a device.
    ///
    /// # Errors
    /// [`Error::Array`].
    pub(crate) fn is_on(&self, device: &Device) -> Result<(), Error> {
        if self.device.is(device) { Ok(()) } else { Err(refused("strengths", "they are on another device")) }
    }

    /// A copy of each set on the host.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn download(&self) -> Result<Vec<Vec<f64>>, Error> {
        let all = self.device.download(&self.all, "strengths")?;
        Ok((0..self.sets).map(|k| all[k * self.length..(k + 1) * self.length].to_vec()).collect())
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
        let length = count * components;
        let all: Buffer<f64> = device.alloc(sets * length, "strengths")?;
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
        unsafe { self.draws()?.threads("normal_strengths", sets * length, &args)? };
        Ok(StrengthSets { device: device.clone(), all, sets, length })
    }
}
