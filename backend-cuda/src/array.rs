//! Numbers that a caller keeps in device memory.

use crate::device::{Buffer, Device};
use fmm_traits::Error;

/// Numbers in f64 in device memory, for callers that have no memory of their own there.
#[derive(Debug)]
pub struct DeviceArray {
    device: Device,
    numbers: Buffer<f64>,
}

impl DeviceArray {
    /// Sends numbers.
    ///
    /// # Errors
    /// Those of the device.
    pub fn new(device: &Device, numbers: &[f64]) -> Result<DeviceArray, Error> {
        Ok(DeviceArray { device: device.clone(), numbers: device.upload(numbers, "an array")? })
    }

    /// `n` zeros.
    ///
    /// # Errors
    /// Those of the device.
    pub fn zeros(device: &Device, n: usize) -> Result<DeviceArray, Error> {
        Ok(DeviceArray { device: device.clone(), numbers: device.zeros(n, "an array")? })
    }

    /// Where it lies.
    pub fn address(&self) -> u64 {
        self.numbers.address()
    }

    /// A copy on the host, of what the device has when its work is done.
    ///
    /// # Errors
    /// Those of the device.
    pub fn download(&self) -> Result<Vec<f64>, Error> {
        self.device.download(&self.numbers, "an array")
    }
}
