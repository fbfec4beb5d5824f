//! Errors of the library as Python exceptions, with their numbers as attributes.

use fmm::Error;
use pyo3::exceptions::{
    PyFileNotFoundError, PyKeyboardInterrupt, PyMemoryError, PyNotImplementedError, PyRuntimeError, PyValueError,
};
use pyo3::prelude::*;
use std::any::Any;

/// What is wrong: the error of a rank, where all ranks return it.
pub fn cause(e: &Error) -> &Error {
    if let Error::Rank { error, .. } = e { error } else { e }
}

/// The exception for an error. `ValueError` says that an argument is wrong, `NotImplementedError` that the library does
/// not do what was asked, `MemoryError` that it does not fit, `RuntimeError` that a device or the system failed.
pub fn raised(e: Error) -> PyErr {
    let text = e.to_string();
    let cause = cause(&e);
    let raised = match cause {
        Error::Memory { .. } => PyMemoryError::new_err(text),
        Error::Unsupported { .. } | Error::UnsupportedOutput { .. } => PyNotImplementedError::new_err(text),
        Error::Cancelled { .. } => PyKeyboardInterrupt::new_err(text),
        Error::Io { .. } => PyFileNotFoundError::new_err(text),
        Error::Threads { .. }
        | Error::RankLost { .. }
        | Error::NoDevice { .. }
        | Error::DeviceCompile { .. }
        | Error::Device { .. } => PyRuntimeError::new_err(text),
        _ => PyValueError::new_err(text),
    };
    Python::attach(|py| {
        let value = raised.value(py);
        // An exception takes attributes; where it does not, its text has the numbers.
        let _ = match cause {
            Error::NotFinite { array, row, column, value: number } => value
                .setattr("array", *array)
                .and_then(|()| value.setattr("row", *row))
                .and_then(|()| value.setattr("column", *column))
                .and_then(|()| value.setattr("value", *number)),
            Error::Shape { array, found, expected, .. } => value
                .setattr("array", *array)
                .and_then(|()| value.setattr("found", *found))
                .and_then(|()| value.setattr("expected", *expected)),
            Error::ToleranceFloor { floor, tolerance, output, .. } => value
                .setattr("floor", *floor)
                .and_then(|()| value.setattr("tolerance", *tolerance))
                .and_then(|()| value.setattr("output", *output)),
            Error::KernelText { line, column, .. } => {
                value.setattr("line", *line).and_then(|()| value.setattr("column", *column))
            }
            _ => Ok(()),
        };
    });
    raised
}

/// What a panic said.
pub fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}
