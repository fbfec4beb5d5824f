//! Peak rates of a device for the two operations that bound M2L: products of large matrices, and copies in device
//! memory.

use crate::device::Device;
use crate::equivalent::DeviceScalar;
use crate::products::{ALL_ROWS, Dense, Products, Which};
use fmm_traits::Error;

/// Measured peak rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// Floating-point operations per second of a matrix product. In f64 the product runs on tensor cores, in f32 on
    /// plain fused multiply-adds. (M2L uses tensor cores in f32 too.)
    pub operations: f64,
    /// Bytes per second that a copy reads and writes.
    pub bytes: f64,
}

/// Rows, columns and vectors of the product. Arrays of this size exceed the caches of most devices.
const MATRIX_SIDE: usize = 4096;
/// Number of runs, of which the fastest counts.
const REPEATS: usize = 5;

impl Device {
    /// Measures the peak rates. Takes some milliseconds.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn ceilings<T: DeviceScalar>(&self) -> Result<Ceilings, Error> {
        let what = "a product of matrices";
        let products = Products::new::<T>(self)?;
        // The entries are not zeros: zeros would take less power, and the device would run at higher clocks.
        let n = MATRIX_SIDE;
        let numbers: Vec<T> = (0..n * n).map(|i| T::of((0.618 * i as f64).fract() - 0.5)).collect();
        let matrix = Dense { data: self.upload(&numbers, what)?, rows: n, cols: n };
        let from = self.upload(&numbers, what)?;
        let mut to = self.zeros::<T>(n * n, what)?;
        let fastest = |run: &mut dyn FnMut() -> Result<(), Error>| {
            let mut least = f64::INFINITY;
            for _ in 0..REPEATS {
                let start = self.mark()?;
                run()?;
                least = least.min(self.seconds(&start, &self.mark()?)?);
            }
            Ok(least)
        };
        let product = fastest(&mut || {
            let (from, to) = ((&from, n, ALL_ROWS), (&to, n, ALL_ROWS));
            // SAFETY: the arrays have this shape.
            unsafe { products.multiply(&matrix, from, to, Which::All(n), 1.0, false) }
        })?;
        // SAFETY: both arrays have the same length.
        let copy = fastest(&mut || unsafe { self.copy_from(from.address(), &mut to, what) })?;
        Ok(Ceilings { operations: 2.0 * (n as f64).powi(3) / product, bytes: 2.0 * from.bytes() as f64 / copy })
    }
}
