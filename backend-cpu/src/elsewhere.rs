//! A near field that another processor sums while the cores translate ([`fmm_traits::near`]).

use fmm_traits::{Error, NearField};
use rayon::prelude::*;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// The sums of each set of strengths, and the seconds that they took.
type Sums = (Vec<Vec<f64>>, f64);

/// Near-field sums that another processor is computing. A separate thread waits for the sums. Dropping this value waits for that
/// thread.
pub(crate) struct Coming(Option<JoinHandle<Result<Sums, Error>>>);

impl Coming {
    /// Begins the sums. `strengths` has the sets one after the other, each of `count` arrays (one for each component) in tree
    /// order.
    pub fn begin(near: &Arc<dyn NearField>, strengths: &[Vec<f64>], count: usize) -> Result<Self, Error> {
        let sets: Vec<Vec<f64>> = strengths.chunks_exact(count).map(rows).collect();
        let near = near.clone();
        let work = move || {
            let start = Instant::now();
            let sums = sets.iter().map(|strengths| near.sums(strengths)).collect::<Result<_, Error>>()?;
            Ok((sums, start.elapsed().as_secs_f64()))
        };
        let thread = thread::Builder::new().name("near field".to_string()).spawn(work);
        Ok(Coming(Some(thread.map_err(|e| Error::Threads { threads: 1, reason: e.to_string() })?)))
    }

    /// Waits for the sums and adds them to `values`, with `width` numbers per set and target. Returns the seconds that the
    /// sums took.
    pub fn add(mut self, width: usize, values: &mut [f64]) -> Result<f64, Error> {
        let Some(thread) = self.0.take() else { return Ok(0.0) };
        let (sums, seconds) = thread.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        let add = |(target, to): (usize, &mut [f64])| {
            for (sums, to) in sums.iter().zip(to.chunks_exact_mut(width)) {
                to.iter_mut().zip(&sums[target * width..]).for_each(|(to, x)| *to += x);
            }
        };
        values.par_chunks_exact_mut(sums.len() * width).enumerate().with_min_len(4096).for_each(add);
        Ok(seconds)
    }
}

impl Drop for Coming {
    /// After a cancelled evaluation, waits for what it has begun.
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            let _ = thread.join();
        }
    }
}

/// One row for each source, made of one array for each component.
fn rows(components: &[Vec<f64>]) -> Vec<f64> {
    if let [one] = components {
        return one.clone();
    }
    let mut rows = vec![0.0; components.len() * components.first().map_or(0, Vec::len)];
    let fill = |(i, row): (usize, &mut [f64])| row.iter_mut().zip(components).for_each(|(to, from)| *to = from[i]);
    rows.par_chunks_exact_mut(components.len().max(1)).enumerate().with_min_len(4096).for_each(fill);
    rows
}
