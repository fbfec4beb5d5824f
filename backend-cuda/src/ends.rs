//! The first and the last step of an evaluation on a GPU, its *ends*: strengths are copied from the caller's array into
//! tree order, and values into the caller's arrays, on the device or on the host. Both steps look for NaN and infinity:
//! the first such number of each array is kept in device memory as a *note* (`kernels/ends.cu`). For a caller on
//! another rank, this rank rounds the values to the precision of that caller's arrays. The other rank writes them there.

use crate::array::DeviceArray;
use crate::device::{Arg, Buffer, Device, Functions, MAX_WALKING_BLOCKS, blocks};
use crate::error::failed;
use crate::pinned::{NOTE_BYTES, Note};
use crate::programs;
use cudarc::driver::{CudaEvent, DriverError, result};
use fmm_traits::{Error, Numbers, NumbersMut, OutputColumns, Precision};
use std::collections::VecDeque;

/// Threads per block.
const BLOCK: u32 = 256;
/// Flag of a column number: the value is the negative of this column.
pub(crate) const MINUS: u32 = 1 << 31;
/// Largest number of arrays that one launch writes: the parameters `Output` of kernels in `ends.cu`.
const OUTPUTS: usize = 4;
/// Room for notes about numbers that are not finite: one for the strengths, one per array of values.
const NOTES: usize = NOTE_BYTES / size_of::<u64>();

/// The arrays of one evaluation.
#[derive(Clone, Debug)]
pub(crate) struct Arrays {
    pub strengths: DeviceArray,
    pub values: Vec<DeviceArray>,
    /// Whether `values` is a single array with all values of a target, instead of one array per output.
    pub rows: bool,
}

/// What other ranks need to know of the arrays of a caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Form {
    pub strengths: Precision,
    /// As in [`Arrays`].
    rows: bool,
    values: Vec<Precision>,
}

impl Arrays {
    /// The form of these arrays.
    pub fn form(&self) -> Form {
        let values = self.values.iter().map(DeviceArray::precision).collect();
        Form { strengths: self.strengths.precision(), rows: self.rows, values }
    }
    /// The address and the type of each array of values.
    fn places(&self) -> Vec<(u64, Precision)> {
        self.values.iter().map(|array| (array.address(), array.precision())).collect()
    }
    /// The address and the type of the strengths.
    pub fn given(&self) -> (u64, Precision) {
        (self.strengths.address(), self.strengths.precision())
    }
}

impl Form {
    /// The form as a message.
    pub fn written(&self) -> Vec<u8> {
        let values = self.values.iter().map(|&v| v as u8);
        [self.strengths as u8, self.rows.into()].into_iter().chain(values).collect()
    }
    /// The form in a message.
    ///
    /// # Errors
    /// [`Error::Shape`] if there is none.
    pub fn read(message: &[u8]) -> Result<Form, Error> {
        let of = |&byte: &u8| if byte == Precision::F32 as u8 { Precision::F32 } else { Precision::F64 };
        match message {
            [strengths, rows, values @ ..] => {
                Ok(Form { strengths: of(strengths), rows: *rows != 0, values: values.iter().map(of).collect() })
            }
            _ => {
                let why = "the arrays of another rank".to_string();
                Err(Error::Shape { array: "values", found: message.len(), expected: 2, why })
            }
        }
    }
}

/// Rows that are copied.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    /// Where each row is read; [`Arg::NULL`]: row i at i.
    pub from: Arg,
    /// Where each row is written; [`Arg::NULL`]: row i at i.
    pub to: Arg,
    /// Number of rows.
    pub n: usize,
    /// Numbers of a row, in tree order.
    pub width: usize,
}

impl Rows {
    fn n(&self) -> Arg {
        (self.n as u64).into()
    }
}

/// The first row whose values are held, and these values.
pub(crate) type Held = [Arg; 2];

/// The number by which strengths are divided, if there is one, and the factor of all values.
pub(crate) type Scale<'a> = (Option<&'a Buffer<u64>>, f64);

/// Bytes between the arrays of a message are multiples of this number.
const ALIGNMENT: usize = size_of::<f64>();

/// What stays between evaluations: programs, columns, notes, and arrays that are still in use.
#[derive(Debug)]
pub(crate) struct Ends {
    device: Device,
    functions: Functions,
    pub columns: Vec<OutputColumns>,
    /// The columns of each output, one behind the other, then all columns.
    table: Buffer<u32>,
    strengths: usize,
    values: usize,
    /// Notes of `ends.cu`. They stay until they are reported.
    notes: Buffer<u64>,
    /// The copy of the notes on the host, with the event after the last evaluation.
    report: Note,
    /// Whether an evaluation was enqueued after the last report.
    pending: bool,
    /// Arrays whose owners would free them without regard to this crate's stream, with the event after their use.
    kept: VecDeque<(CudaEvent, Arrays)>,
    /// Arrays of the last evaluation on arrays of the host.
    room: Option<Arrays>,
}

impl Ends {
    /// `strengths` per source and `values` per target.
    pub fn new(device: &Device, columns: &[OutputColumns], strengths: usize, values: usize) -> Result<Self, Error> {
        let row: Vec<u32> = (0..values as u32).collect();
        Ends::of_rows(device, columns, strengths, &row)
    }

    /// As [`new`](Ends::new), if the values of a target are other numbers than the plan holds: value v of a target is
    /// number `row[v]` of the plan, or its negative ([`MINUS`]).
    pub fn of_rows(device: &Device, columns: &[OutputColumns], strengths: usize, row: &[u32]) -> Result<Self, Error> {
        debug_assert!(columns.len() < NOTES, "a note for each output");
        let of_outputs = columns.iter().flat_map(|c| &c.columns).map(|&c| row[c]);
        let table: Vec<u32> = of_outputs.chain(row.iter().copied()).collect();
        let values = row.len();
        Ok(Ends {
            functions: device.fixed("ends", programs::ends)?,
            table: device.upload(&table, "columns")?,
            notes: device.zeros(NOTES, "notes")?,
            report: Note::new(device)?,
            device: device.clone(),
            columns: columns.to_vec(),
            strengths,
            values,
            pending: false,
            kept: VecDeque::new(),
            room: None,
        })
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.room.iter().map(|a| a.strengths.bytes() + a.values.iter().map(DeviceArray::bytes).sum::<u64>()).sum()
    }

    /// Frees the arrays of evaluations on arrays of the host.
    pub fn forget_room(&mut self) {
        self.room = None;
    }

    /// Enqueues finding the largest magnitude of `n` strengths: see `ends.cu`. `noted`: also looks for NaN and infinity.
    pub fn largest(
        &self,
        arrays: &Arrays,
        [n, width, linear]: [usize; 3],
        factors: &Buffer<f64>,
        largest: &Buffer<u64>,
        noted: bool,
    ) -> Result<(), Error> {
        let given = &arrays.strengths;
        let found = if noted { self.notes.at(0) } else { Arg::NULL };
        self.larger((given.address(), given.precision()), [n, width, linear], factors.into(), largest, found)
    }

    /// Enqueues a maximum: `largest` holds the bits of a number, `other` is the address of the number of another rank, and the
    /// larger of the two is stored in `largest`.
    pub fn larger_of(&self, other: u64, largest: &Buffer<u64>) -> Result<(), Error> {
        self.larger((other, Precision::F64), [1; 3], Arg::NULL, largest, Arg::NULL)
    }

    fn larger(
        &self,
        (given, precision): (u64, Precision),
        [n, width, linear]: [usize; 3],
        factors: Arg,
        largest: &Buffer<u64>,
        found: Arg,
    ) -> Result<(), Error> {
        let shape = [(n as u64).into(), (width as u32).into(), (linear as u32).into()];
        let args = [Arg::address(given), shape[0], shape[1], shape[2], factors, largest.into(), found];
        let grid = blocks(n * width, BLOCK as usize)?.min(MAX_WALKING_BLOCKS);
        let entry = entry(precision, "largest_f32", "largest_f64");
        // SAFETY: arguments as in ends.cu; the caller's arrays were checked against the counts of this evaluation.
        unsafe { self.device.launch(&self.functions, entry, (grid, 1), BLOCK, &args) }
    }

    /// Enqueues the copy of rows of strengths, from an address, to the f64 at `to`, divided by the number in `unit`.
    /// `noted`: also looks for NaN and infinity.
    pub fn scatter(
        &self,
        (given, precision): (u64, Precision),
        rows: Rows,
        linear: usize,
        unit: Option<&Buffer<u64>>,
        to: Arg,
        noted: bool,
    ) -> Result<(), Error> {
        let args = [
            Arg::address(given),
            rows.from,
            rows.to,
            rows.n(),
            (rows.width as u32).into(),
            (linear as u32).into(),
            unit.map_or(Arg::NULL, Arg::from),
            to,
            if noted { self.notes.at(0) } else { Arg::NULL },
        ];
        let grid = (blocks(rows.n * rows.width, BLOCK as usize)?, 1);
        let entry = entry(precision, "scatter_f32", "scatter_f64");
        // SAFETY: as above; there is a row for each that is read or written.
        unsafe { self.device.launch(&self.functions, entry, grid, BLOCK, &args) }
    }

    /// Enqueues the copy of rows of values, f64, into the arrays of the caller.
    pub fn gather(&self, arrays: &Arrays, rows: Rows, scale: Scale, values: Held) -> Result<(), Error> {
        self.values((arrays.rows, &arrays.places()), rows, scale, values, true)
    }

    /// The number of columns of each array of a caller.
    fn widths(&self, rows: bool) -> Vec<usize> {
        if rows { vec![self.values] } else { self.columns.iter().map(|c| c.columns.len()).collect() }
    }

    /// Enqueues the copy of rows of values to arrays, each an address and a type: to one with all values, or to one for each
    /// output. `noted`: also looks for NaN and infinity.
    fn values(
        &self,
        (all, to): (bool, &[(u64, Precision)]),
        rows: Rows,
        (unit, factor): Scale,
        [held, values]: Held,
        noted: bool,
    ) -> Result<(), Error> {
        let mut first = if all { self.table.len() - self.values } else { 0 };
        for (k, (columns, outputs)) in self.by_fours(all, to).into_iter().enumerate() {
            let args = [
                held,
                values,
                rows.from,
                rows.to,
                rows.n(),
                (rows.width as u32).into(),
                self.table.at(first),
                unit.map_or(Arg::NULL, Arg::from),
                factor.into(),
            ];
            let found = if noted { self.notes.at(1 + k * OUTPUTS) } else { Arg::NULL };
            let args = [&args[..], &outputs, &[found]].concat();
            let grid = (blocks(rows.n * columns, BLOCK as usize)?, 1);
            // SAFETY: arguments as in ends.cu; `values` has a row for each that is read, and the arrays for each that is
            // written.
            unsafe { self.device.launch(&self.functions, "gather", grid, BLOCK, &args)? };
            first += columns;
        }
        Ok(())
    }

    /// Arrays, each an address and a type, as kernels take them, four at a time, with the number of their columns together.
    fn by_fours(&self, all: bool, to: &[(u64, Precision)]) -> Vec<(usize, [Arg; OUTPUTS])> {
        let widths = self.widths(all);
        let four = |(to, widths): (&[(u64, Precision)], &[usize])| {
            let output = |i: usize| match (to.get(i), widths.get(i)) {
                (Some(&(address, precision)), Some(&width)) => {
                    Arg::from((address, [width as u32, u32::from(precision == Precision::F32)]))
                }
                _ => Arg::from((0, [0, 0])),
            };
            (widths.iter().sum(), std::array::from_fn(output))
        };
        to.chunks(OUTPUTS).zip(widths.chunks(OUTPUTS)).map(four).collect()
    }

    /// Where each array begins in a message with `n` rows for a caller with arrays of this form, and the bytes of the
    /// message.
    fn sections(&self, form: &Form, n: usize) -> (Vec<usize>, usize) {
        let mut end = 0;
        let section = |(width, precision): (usize, &Precision)| {
            let start = end;
            end += (n * width * precision.bytes()).next_multiple_of(ALIGNMENT);
            start
        };
        (self.widths(form.rows).into_iter().zip(&form.values).map(section).collect(), end)
    }

    /// Bytes of a message with `n` rows of values for a caller with arrays of this form.
    pub fn bytes_of(&self, form: &Form, n: usize) -> usize {
        self.sections(form, n).1
    }

    /// Enqueues the copy of rows of values, f64, into a message at an address, as the caller with arrays of this form gets
    /// them.
    pub fn pack(&self, form: &Form, rows: Rows, scale: Scale, values: Held, message: u64) -> Result<(), Error> {
        let (starts, _) = self.sections(form, rows.n);
        let to: Vec<_> =
            starts.iter().zip(&form.values).map(|(&start, &precision)| (message + start as u64, precision)).collect();
        self.values((form.rows, &to), rows, scale, values, false)
    }

    /// Enqueues the copy of `n` rows of a message at an address, as [`pack`](Ends::pack) has made it, into the rows `to` of
    /// the arrays of the caller.
    pub fn deliver(&self, arrays: &Arrays, to: Arg, n: usize, message: u64) -> Result<(), Error> {
        let (starts, _) = self.sections(&arrays.form(), n);
        let fours = self.by_fours(arrays.rows, &arrays.places()).into_iter().zip(starts.chunks(OUTPUTS));
        for (k, ((columns, outputs), starts)) in fours.enumerate() {
            let starts: [Arg; OUTPUTS] = std::array::from_fn(|i| starts.get(i).map_or(0, |&start| start as u64).into());
            let rows = [to, (n as u64).into()];
            let notes = [self.notes.at(1 + k * OUTPUTS)];
            let args = [&[Arg::address(message)][..], &starts, &rows, &outputs, &notes].concat();
            let grid = (blocks(n * columns, BLOCK as usize)?, 1);
            // SAFETY: as above; the message has `n` rows for each array.
            unsafe { self.device.launch(&self.functions, "deliver", grid, BLOCK, &args)? };
        }
        Ok(())
    }

    /// Enqueues the copy of the notes to the host.
    pub fn end(&mut self) -> Result<(), Error> {
        let (_, context, stream) = self.device.staging();
        let stream = stream.cu_stream();
        let failing = |e: DriverError| failed("notes about the values", e);
        context.bind_to_thread().map_err(failing)?;
        // SAFETY: the pinned buffer has room for all notes, and is read after its event.
        unsafe {
            let to = std::slice::from_raw_parts_mut(self.report.pinned().at(), NOTES * size_of::<u64>());
            result::memcpy_dtoh_async(to, self.notes.address(), stream).map_err(failing)?;
            result::event::record(self.report.pinned().event.cu_event(), stream).map_err(failing)?;
        }
        self.pending = true;
        Ok(())
    }

    /// Reports numbers that were not finite, in evaluations that are done; waits for all of them if `wait`.
    ///
    /// # Errors
    /// [`Error::NotFinite`] once, and errors of the device.
    pub fn check(&mut self, wait: bool) -> Result<(), Error> {
        let failing = |e: DriverError| failed("an evaluation", e);
        self.device.context().bind_to_thread().map_err(failing)?;
        if wait {
            self.report.pinned().event.synchronize().map_err(failing)?;
            self.kept.back().map_or(Ok(()), |(event, _)| event.synchronize()).map_err(failing)?;
        }
        while let Some((event, _)) = self.kept.front()
            && event.try_is_complete().map_err(failing)?
        {
            self.kept.pop_front();
        }
        if !self.pending || !self.report.pinned().event.try_is_complete().map_err(failing)? {
            return Ok(());
        }
        self.pending = false;
        // SAFETY: the copy into the buffer is done; eight bytes per note, aligned as all pinned memory.
        let notes = unsafe { std::slice::from_raw_parts(self.report.pinned().at().cast::<u64>().cast_const(), NOTES) };
        let Some((k, &note)) = notes.iter().enumerate().find(|(_, note)| **note != 0) else { return Ok(()) };
        let (array, width) = match k {
            0 => ("strengths", self.strengths),
            k => self.columns.get(k - 1).map_or(("values", self.values), |c| (name(c), c.columns.len())),
        };
        self.forget_notes()?;
        let (index, kind) = ((!note / 4) as usize, !note % 4);
        let value = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][kind as usize % 3];
        Err(Error::NotFinite { array, row: index / width, column: index % width, value })
    }

    /// Keeps arrays that their owner would free without regard to this crate's stream, until the enqueued work is done.
    pub fn keep(&mut self, arrays: Arrays) -> Result<(), Error> {
        match self.device.event() {
            Ok(event) => self.kept.push_back((event, arrays)),
            // The arrays must not go before the work is done.
            Err(_) => self.device.synchronize()?,
        }
        Ok(())
    }

    /// Enqueues forgetting all notes.
    pub fn forget_notes(&mut self) -> Result<(), Error> {
        let device = self.device.clone();
        device.clear(&mut self.notes)
    }

    /// Checks the lengths of strengths and values.
    pub fn fits(&self, strengths: usize, values: &[usize], rows: bool, [n, m]: [usize; 2]) -> Result<(), Error> {
        let shape = |array, found: usize, expected: usize, why: &str| {
            if found == expected { Ok(()) } else { Err(Error::Shape { array, found, expected, why: why.to_string() }) }
        };
        shape("strengths", strengths, n * self.strengths, "sources × strengths of the kernel")?;
        if rows {
            return shape(
                "values",
                values.first().copied().unwrap_or(0),
                m * self.values,
                "targets × values of the kernel",
            );
        }
        shape("outputs", values.len(), self.columns.len(), "one array per requested output")?;
        for (c, &found) in self.columns.iter().zip(values) {
            shape(name(c), found, m * c.columns.len(), "targets × components of the output")?;
        }
        Ok(())
    }

    /// Arrays on the device for arrays on the host.
    pub fn room(&mut self, strengths: Numbers, values: &[NumbersMut], rows: bool) -> Result<Arrays, Error> {
        let lengths = |a: &Arrays| a.values.iter().map(|v| (v.len(), v.precision())).collect::<Vec<_>>();
        let wanted: Vec<(usize, Precision)> = values.iter().map(|v| (v.read().len(), v.read().precision())).collect();
        let given = (strengths.len(), strengths.precision());
        let held = self.room.take().filter(|a| (a.strengths.len(), a.strengths.precision()) == given);
        let arrays = match held.filter(|a| lengths(a) == wanted) {
            Some(arrays) => Arrays { rows, ..arrays },
            None => Arrays {
                strengths: DeviceArray::room(&self.device, given.0, given.1)?,
                values: wanted.iter().map(|&(n, p)| DeviceArray::room(&self.device, n, p)).collect::<Result<_, _>>()?,
                rows,
            },
        };
        self.room = Some(arrays.clone());
        Ok(arrays)
    }
}

/// Arrays that were taken over stay until the work on them is done.
impl Drop for Ends {
    fn drop(&mut self) {
        if !self.kept.is_empty() && self.device.synchronize().is_err() {
            // A device that cannot be waited for may still use them.
            std::mem::forget(std::mem::take(&mut self.kept));
        }
    }
}

/// The name of an output in errors.
pub(crate) fn name(of: &OutputColumns) -> &'static str {
    of.output.names().first().copied().unwrap_or("values")
}

fn entry(precision: Precision, single: &'static str, double: &'static str) -> &'static str {
    match precision {
        Precision::F32 => single,
        Precision::F64 => double,
    }
}
