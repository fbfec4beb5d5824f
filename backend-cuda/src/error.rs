//! The driver's errors as errors of the workspace.

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use fmm_traits::Error;

/// The driver's name and text for `e`. Call it only if the driver's library is loaded, since the text comes from there.
fn words(e: DriverError) -> String {
    let name = e.error_name().map(|s| s.to_string_lossy().into_owned());
    let text = e.error_string().map(|s| s.to_string_lossy().into_owned());
    match (name, text) {
        (Ok(name), Ok(text)) => format!("{name} ({text})"),
        _ => format!("{:?}", e.0),
    }
}

/// The failure of `call` as an error.
pub(crate) fn failed(call: &str, e: DriverError) -> Error {
    Error::Device { call: call.to_string(), reason: words(e) }
}

/// The failure to get a device as an error.
pub(crate) fn no_device(e: DriverError) -> Error {
    Error::NoDevice { reason: words(e) }
}

/// Whether `e` says that device memory is exhausted.
pub(crate) fn out_of_memory(e: DriverError) -> bool {
    e.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY
}
