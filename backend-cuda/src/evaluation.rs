//! Evaluations on a GPU: on arrays of the device, enqueued, and on arrays of the host.

use crate::array::{DeviceArray, DeviceStream, refused};
use crate::device::{Buffer, Device};
use crate::ends::{Arrays, Ends, name};
use crate::strengths::StrengthSets;
use fmm_traits::sums::{check_sets, one_by_one};
use fmm_traits::{Error, Numbers, NumbersMut, Observer, StageSeconds};

/// Something that turns strengths into values on a device.
pub(crate) trait Evaluation {
    /// The device.
    fn device(&self) -> &Device;
    /// Numbers of sources and targets.
    fn counts(&self) -> [usize; 2];
    /// The first and last stages of the evaluation.
    fn ends(&mut self) -> &mut Ends;
    /// Whether other ranks take part in each evaluation.
    fn shared(&self) -> bool {
        false
    }
    /// Waits until all ranks have their sums.
    ///
    /// # Errors
    /// The error of a rank that failed.
    fn wait(&self) -> Result<(), Error> {
        Ok(())
    }
    /// Whether a strength of any rank was not finite in the evaluation that is done.
    ///
    /// # Errors
    /// Errors of the device.
    fn spoilt(&self) -> Result<bool, Error> {
        Ok(false)
    }
    /// Enqueues all stages. If `timed`, waits and returns the seconds of each stage.
    fn run(&mut self, arrays: &Arrays, observer: Observer, timed: bool) -> Result<StageSeconds, Error>;
}

/// Enqueues an evaluation on arrays of the device, in the order of `stream`. With one rank it does not wait. With several
/// ranks it waits until the sums of this rank are done.
pub(crate) fn enqueue(
    on: &mut dyn Evaluation,
    strengths: &DeviceArray,
    values: &[DeviceArray],
    stream: &DeviceStream,
) -> Result<(), Error> {
    on.ends().check(false)?;
    let (device, counts) = (on.device().clone(), on.counts());
    let handle = stream.on(&device)?;
    let lengths: Vec<usize> = values.iter().map(DeviceArray::len).collect();
    on.ends().fits(strengths.len(), &lengths, false, counts)?;
    for (k, v) in values.iter().enumerate() {
        let name = name(&on.ends().columns[k]);
        v.is_on(name, &device)?;
        if v.overlaps(strengths) || values[..k].iter().any(|other| other.overlaps(v)) {
            return Err(refused(name, "the array overlaps another array of the call"));
        }
    }
    strengths.is_on("strengths", &device)?;
    let arrays = Arrays { strengths: strengths.clone(), values: values.to_vec(), rows: false };
    // SAFETY: the stream belongs to this device, as checked, and lives by the promise of its type.
    let done = unsafe {
        device.within(handle, || {
            on.run(&arrays, &mut |_, _| true, false)?;
            on.ends().end()
        })
    };
    if arrays.values.iter().chain([&arrays.strengths]).any(|a| a.is_foreign(&device)) {
        on.ends().keep(arrays)?;
    }
    if !on.shared() {
        return done;
    }
    let checked = done.and_then(|()| on.ends().check(true));
    if checked.is_err() {
        on.ends().forget_notes().and_then(|()| device.synchronize())?;
    }
    match checked {
        // A bad strength spoils values of all ranks. Its own rank reports it.
        Err(Error::NotFinite { array, .. }) if array != "strengths" && on.spoilt()? => Ok(()),
        checked => checked,
    }
}

/// One evaluation on arrays of the host. `values` are left as they are if the evaluation fails.
pub(crate) fn apply(
    on: &mut dyn Evaluation,
    strengths: Numbers,
    values: &mut [NumbersMut],
    rows: bool,
    observer: Observer,
) -> Result<StageSeconds, Error> {
    let counts = on.counts();
    let lengths: Vec<usize> = values.iter().map(|v| v.read().len()).collect();
    on.ends().fits(strengths.len(), &lengths, rows, counts)?;
    let device = on.device().clone();
    // NaN or infinity of earlier evaluations would seem to come from this one.
    on.ends().check(true)?;
    let arrays = on.ends().room(strengths, values, rows)?;
    // SAFETY: the array has as many numbers of the same type.
    unsafe {
        match strengths {
            Numbers::F32(x) => device.send(x, arrays.strengths.address(), "strengths")?,
            Numbers::F64(x) => device.send(x, arrays.strengths.address(), "strengths")?,
        }
    }
    let run = on.run(&arrays, observer, true);
    let seconds = match run {
        Ok(seconds) => seconds,
        Err(e) => {
            // The strengths may still be on their way, and what was noted about them concerns nobody.
            on.ends().forget_notes().and_then(|()| device.synchronize())?;
            return Err(e);
        }
    };
    on.ends().end()?;
    match on.ends().check(true) {
        // A caller that asks for rows checks the values itself.
        Err(Error::NotFinite { .. }) if rows => {}
        checked => checked?,
    }
    on.wait()?;
    for (from, to) in arrays.values.iter().zip(values) {
        match to {
            NumbersMut::F32(to) => from.read(to)?,
            NumbersMut::F64(to) => from.read(to)?,
        }
    }
    Ok(seconds)
}

/// [`apply`] for several sets of strengths into rows, with the same bits. On one rank the host waits once, and so does not
/// time the stages of several sets.
pub(crate) fn apply_batch(
    on: &mut dyn Evaluation,
    strengths: &[&[f64]],
    out: &mut [&mut [f64]],
    observer: Observer,
) -> Result<StageSeconds, Error> {
    // Ranks agree after each evaluation.
    if strengths.len() == 1 || on.shared() {
        return one_by_one(strengths, out, |strengths, out| {
            apply(on, Numbers::F64(strengths), &mut [NumbersMut::F64(out)], true, &mut *observer)
        });
    }
    check_sets(strengths, out)?;
    let (device, counts) = (on.device().clone(), on.counts());
    for (strengths, out) in strengths.iter().zip(out.iter()) {
        on.ends().fits(strengths.len(), &[out.len()], true, counts)?;
    }
    on.ends().check(true)?;
    let mut all: Buffer<f64> = device.alloc(out.iter().map(|out| out.len()).sum(), "values")?;
    let set = strengths.iter().map(|set| set.len()).max().unwrap_or(0);
    let together = (StrengthSets::BYTES_PER_CALL / (size_of::<f64>() * set).max(1)).clamp(1, strengths.len().max(1));
    let mut at = 0;
    let mut some = |sets: &[&[f64]], out: &mut [&mut [f64]]| {
        let sent = if together > 1 { Some(StrengthSets::sent(&device, sets)?) } else { None };
        for (k, (strengths, out)) in sets.iter().zip(out).enumerate() {
            let arrays = on.ends().room(Numbers::F64(strengths), &[NumbersMut::F64(out)], true)?;
            let to = arrays.strengths.address();
            // SAFETY: the arrays have as many numbers of the same type.
            unsafe {
                match &sent {
                    None => device.send(strengths, to, "strengths")?,
                    Some(sent) => device.copy_bytes(sent.address(k), to, size_of_val(*strengths), "strengths")?,
                }
            }
            on.run(&arrays, &mut *observer, false)?;
            // SAFETY: the array has as many numbers of the same type, and stays until the next evaluation at least.
            unsafe { device.copy_into(arrays.values[0].address(), &mut all, (at, out.len()), "values")? };
            at += out.len();
        }
        Ok(())
    };
    let done = strengths.chunks(together).zip(out.chunks_mut(together)).try_for_each(|(sets, out)| some(sets, out));
    if let Err(e) = done {
        // As in `apply`.
        on.ends().forget_notes().and_then(|()| device.synchronize())?;
        return Err(e);
    }
    on.ends().end()?;
    match on.ends().check(true) {
        Err(Error::NotFinite { .. }) => {}
        checked => checked?,
    }
    let all = device.download(&all, "values")?;
    let mut rest = &all[..];
    for out in out {
        let (mine, others) = rest.split_at(out.len());
        out.copy_from_slice(mine);
        rest = others;
    }
    Ok(StageSeconds::default())
}
