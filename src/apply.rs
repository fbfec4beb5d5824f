//! Evaluations of a plan, on arrays of the host or of a device.

use crate::coordinates;
use crate::output::{DeviceOutput, Output, name, set_len};
use crate::plan::{Plan, watch};
use crate::validate;
use backend_cuda::{DeviceArray, DeviceScalar, DeviceStream, DeviceSums};
use fmm_traits::{Error, Number, Numbers, NumbersMut, OutputColumns, Outputs, Stage, StageSeconds};
use rayon::prelude::*;
use std::borrow::Cow;
use std::time::Instant;

impl Plan {
    /// The sums for `strengths` (N×s), in f32 or f64. The sums have the type of the strengths, whatever the
    /// [precision](crate::Fmm::precision) of the plan.
    ///
    /// # Errors
    /// Strengths of wrong length, NaN or infinity in the strengths or in a sum, cancellation by the progress callback.
    /// [`Error::Unsupported`] if the points are on a device.
    pub fn apply<T: Number>(&self, strengths: &[T]) -> Result<Output<T>, Error> {
        let mut out = Output::default();
        self.apply_into(strengths, &mut out)?;
        Ok(out)
    }

    /// [`Plan::apply`] into reused buffers. After an error the outputs are as before.
    ///
    /// # Errors
    /// As [`Plan::apply`].
    pub fn apply_into<T: Number>(&self, strengths: &[T], out: &mut Output<T>) -> Result<(), Error> {
        self.host_only("apply")?;
        self.apply_together(&[strengths], std::slice::from_mut(out))
    }

    /// An error if the points are on a device.
    pub(crate) fn host_only(&self, operation: &'static str) -> Result<(), Error> {
        if !self.on_device {
            return Ok(());
        }
        let reason = "the points are on a device, and so must be the strengths: use apply_on_device".to_string();
        Err(Error::Unsupported { operation, reason })
    }

    /// Enqueues the sums for `strengths` (N×s) on the device of the points, into the arrays of `out`: one per requested
    /// output, in f32 or f64, overwritten. The work runs after the work that is already in `stream`, and before work
    /// that the stream gets later: later work in the stream may read the sums and change the strengths. The call does
    /// not wait for the device.
    ///
    /// On several [ranks](crate::Fmm::ranks) all call it together, each with its arrays on its device. The call then waits for
    /// the sums, and reports NaN or infinity in its own arrays.
    ///
    /// Arrays that own their memory may be dropped right after the call if no work of the caller uses them. Borrowed
    /// memory must stay valid until the sums are done, for example until [`Plan::synchronize`] returns.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the points are not on a device. [`Error::Shape`] and [`Error::Array`] for arrays that
    /// do not fit. [`Error::NotFinite`] for NaN or infinity in the strengths or sums of an *earlier* call; the new sums
    /// are then not enqueued. [`Plan::synchronize`] waits for all calls and reports theirs.
    pub fn apply_on_device(
        &self,
        strengths: &DeviceArray,
        out: &DeviceOutput,
        stream: &DeviceStream,
    ) -> Result<(), Error> {
        self.jointly(|| self.enqueue(strengths, out, stream))
    }

    /// [`apply_on_device`](Plan::apply_on_device) on this rank.
    fn enqueue(&self, strengths: &DeviceArray, out: &DeviceOutput, stream: &DeviceStream) -> Result<(), Error> {
        let facts = &self.choice.facts;
        let refuse =
            |reason: &str| Err(Error::Unsupported { operation: "apply_on_device", reason: reason.to_string() });
        if !self.on_device {
            return refuse("the points are on the host, and so must be the strengths: use apply");
        }
        validate::shape("strengths", strengths.len(), self.n_sources, facts.linear(), self.request.family.name())?;
        let mut arrays = Vec::new();
        for c in &facts.columns {
            let Some(array) = out.get(c.output) else {
                return Err(Error::Array { array: name(c), reason: "the output has no array".to_string() });
            };
            arrays.push(array.clone());
        }
        match self.engine.as_ref().map(|engine| engine.sums()) {
            Some(Some(sums)) => sums.enqueue(strengths, &arrays, stream),
            Some(None) => refuse("this method takes arrays of the host"),
            // Without sources all sums are zero.
            None => facts.columns.iter().zip(&arrays).try_for_each(|(c, array)| {
                let kernel = self.request.family.name();
                validate::shape(name(c), array.len(), self.n_targets, c.columns.len(), kernel)?;
                array.clear(stream)
            }),
        }
    }

    /// Waits for the evaluations of [`Plan::apply_on_device`].
    ///
    /// # Errors
    /// [`Error::NotFinite`] with the first NaN or infinity in the strengths, or else in an output, of the evaluations since
    /// the last such error. The error does not say which of them it was. Errors of the device.
    pub fn synchronize(&self) -> Result<(), Error> {
        match self.engine.as_ref().and_then(|engine| engine.sums()) {
            Some(sums) => sums.synchronize(),
            None => Ok(()),
        }
    }

    /// Arrays of zeros for [`Plan::apply_on_device`], one per requested output, with numbers of type `T`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a plan on a CPU, and errors of the device.
    pub fn device_output<T: DeviceScalar>(&self) -> Result<DeviceOutput, Error> {
        let Some(device) = self.request.backend.processor().opened(&self.request).transpose()? else {
            let reason = "the plan is for a CPU".to_string();
            return Err(Error::Unsupported { operation: "device_output", reason });
        };
        let mut out = DeviceOutput::default();
        for c in &self.choice.facts.columns {
            let zeros = DeviceArray::zeros::<T>(&device, self.n_targets * c.columns.len())?;
            *out.get_mut(c.output) = Some(zeros);
        }
        Ok(out)
    }

    /// The sums for several sets of strengths, each N×s. The results have the same bits as one [`Plan::apply`] per
    /// set. On a CPU in space, direct sums and equivalent densities evaluate the kernel once for 8 sets if a target
    /// has one value, for 4 sets if it has two to four, within the free memory. `seconds` and `stages` of each
    /// [`Output`] are then equal shares.
    ///
    /// # Errors
    /// As [`Plan::apply`], for the first set with an error.
    pub fn apply_batch<S: AsRef<[f64]>>(&self, strengths: &[S]) -> Result<Vec<Output>, Error> {
        self.host_only("apply_batch")?;
        let (most, bytes) = self.engine.as_ref().map_or((1, 0), |e| e.together());
        let several = self.engine.as_ref().filter(|_| most > 1 && strengths.len() > 1);
        let free = several.map_or(Ok(None), |e| e.free_memory())?;
        let bytes = bytes + (16 * self.n_targets * self.choice.facts.values) as u64;
        let further = free.map_or(u64::MAX, |free| free / 2 / bytes.max(1));
        let further = self.agreed_sets(strengths.len(), further)?;
        let mut all = Vec::with_capacity(strengths.len());
        for sets in strengths.chunks(1 + (most - 1).min(further as usize)) {
            let mut out = vec![Output::default(); sets.len()];
            let sets: Vec<&[f64]> = sets.iter().map(AsRef::as_ref).collect();
            self.apply_together(&sets, &mut out)?;
            all.append(&mut out);
        }
        Ok(all)
    }

    /// The sums for each set in `strengths`, all at once. After an error the outputs are as before.
    pub(crate) fn apply_together<T: Number>(&self, strengths: &[&[T]], out: &mut [Output<T>]) -> Result<(), Error> {
        let start = Instant::now();
        let stages = self.pool.install(|| match self.engine.as_ref().and_then(|engine| engine.sums()) {
            Some(sums) => self.jointly(|| self.sum_arrays(sums, strengths, out)),
            None => self.sum_rows(strengths, out),
        })?;
        let share = 1.0 / out.len() as f64;
        let seconds = start.elapsed().as_secs_f64() * share;
        for out in out {
            if let Some(map) = &self.choice.facts.map {
                self.pool.install(|| coordinates::pull_back(map, out));
            }
            (out.stages, out.seconds) = (stages.map(|s| s * share), seconds);
        }
        Ok(())
    }

    /// Sums into one array per output. The sums check their strengths and values.
    fn sum_arrays<T: Number>(
        &self,
        sums: &dyn DeviceSums,
        strengths: &[&[T]],
        out: &mut [Output<T>],
    ) -> Result<StageSeconds, Error> {
        let (facts, mut stages) = (&self.choice.facts, StageSeconds::default());
        for (q, out) in strengths.iter().zip(out) {
            let kernel = self.request.family.name();
            validate::shape("strengths", q.len(), self.n_sources, facts.linear(), kernel)?;
            if self.is_shared() {
                // A bad strength spoils values of all ranks, which would report those.
                validate::finite("strengths", q, facts.linear())?;
            }
            let joined = self.request.attributes.join(q, facts);
            let q = joined.as_ref().map_or(T::numbers(q), |q| Numbers::F64(q));
            // Arrays of the right length are reused. Until the sums are there, all others stay as they are.
            let wanted = |c: &OutputColumns| self.n_targets * c.columns.len();
            let reused = |out: &mut Output<T>, c: &OutputColumns| {
                (out.get(c.output).len() == wanted(c)).then(|| std::mem::take(out.get_mut(c.output)))
            };
            let held: Vec<Option<Vec<T>>> = facts.columns.iter().map(|c| reused(out, c)).collect();
            let fits: Vec<bool> = held.iter().map(Option::is_some).collect();
            let all = held.into_iter().zip(&facts.columns);
            let mut arrays: Vec<Vec<T>> =
                all.map(|(held, c)| held.unwrap_or_else(|| vec![T::default(); wanted(c)])).collect();
            let mut watch = |stage: Stage, done: f64| watch(&self.request, stage.name(), done).is_ok();
            let mut values: Vec<NumbersMut> = arrays.iter_mut().map(|a| T::numbers_mut(a)).collect();
            let done = sums.apply_numbers(q, &mut values, &mut watch);
            for ((c, array), fits) in facts.columns.iter().zip(arrays).zip(fits) {
                if fits || done.is_ok() {
                    *out.get_mut(c.output) = array;
                }
            }
            if done.is_ok() {
                let kept = |output| facts.columns.iter().any(|c| c.output == output);
                Outputs::ALL.iter().filter(|(o, _)| !kept(*o)).for_each(|(o, _)| out.get_mut(*o).clear());
            }
            stages.iter_mut().zip(done?).for_each(|(sum, s)| *sum += s);
        }
        Ok(stages)
    }

    /// Sums into rows of kernel values in f64, which are checked and then distributed to the outputs.
    fn sum_rows<T: Number>(&self, strengths: &[&[T]], out: &mut [Output<T>]) -> Result<StageSeconds, Error> {
        let facts = &self.choice.facts;
        let stages = self.jointly(|| self.fill_rows(strengths, out))?;
        out.iter_mut().for_each(|out| out.split(facts));
        Ok(stages)
    }

    /// Sums into the rows of `out`, and checks strengths and sums.
    fn fill_rows<T: Number>(&self, strengths: &[&[T]], out: &mut [Output<T>]) -> Result<StageSeconds, Error> {
        let facts = &self.choice.facts;
        for q in strengths {
            validate::matrix("strengths", q, self.n_sources, facts.linear(), self.request.family.name())?;
        }
        let widened: Vec<Cow<[f64]>> = strengths
            .iter()
            .map(|q| match (self.request.attributes.join(q, facts), T::numbers(q)) {
                (Some(joined), _) => Cow::Owned(joined),
                (None, Numbers::F64(q)) => Cow::Borrowed(q),
                (None, Numbers::F32(q)) => Cow::Owned(q.par_iter().map(|&x| f64::from(x)).collect()),
            })
            .collect();
        let strengths: Vec<&[f64]> = widened.iter().map(|q| &q[..]).collect();
        let rows = out.iter_mut().map(|out| {
            set_len(&mut out.raw, self.n_targets * facts.values);
            &mut out.raw[..]
        });
        let stages = self.run(&strengths, &mut rows.collect::<Vec<_>>())?;
        out.iter().try_for_each(|out| out.check(facts))?;
        Ok(stages)
    }

    /// Writes rows of kernel values for checked strengths, on the current pool. Returns the seconds of each stage.
    pub(crate) fn run(&self, strengths: &[&[f64]], rows: &mut [&mut [f64]]) -> Result<StageSeconds, Error> {
        match &self.engine {
            Some(engine) => engine.run(strengths, rows, &|phase, done| watch(&self.request, phase, done)),
            None => {
                rows.iter_mut().for_each(|rows| rows.fill(0.0));
                Ok(StageSeconds::default())
            }
        }
    }
}
