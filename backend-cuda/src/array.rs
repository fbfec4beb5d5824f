//! Arrays of a caller in device memory.

use crate::device::{Buffer, Device};
use fmm_traits::Error;

/// An array of f64 in device memory, for callers that have no other way to allocate there.
#[derive(Debug)]
pub struct DeviceArray {
    device: Device,
    numbers: Buffer<f64>,
}

impl DeviceArray {
    /// Copies numbers to the device.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(device: &Device, numbers: &[f64]) -> Result<DeviceArray, Error> {
        Ok(DeviceArray { device: device.clone(), numbers: device.upload(numbers, "an array")? })
    }

    /// `n` zeros.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn zeros(device: &Device, n: usize) -> Result<DeviceArray, Error> {
        Ok(DeviceArray { device: device.clone(), numbers: device.zeros(n, "an array")? })
    }

    /// Address in device memory.
    pub fn address(&self) -> u64 {
        self.numbers.address()
    }

    /// A copy on the host. Waits for all enqueued work first.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn download(&self) -> Result<Vec<f64>, Error> {
        self.device.download(&self.numbers, "an array")
    }
}
