//! What a device reaches at the two things that bound M2L: products of large matrices, and copies within its memory.

use crate::device::Device;
use crate::equivalent::DeviceScalar;
use crate::products::{ALL, Dense, Products, Which};
use fmm_traits::Error;

/// Rates that were measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// Floating-point operations a second of a product: on tensor cores in f64, in f32 by plain fused multiply-adds (M2L has tensor cores there,
    /// too).
    pub operations: f64,
    /// Bytes a second that a copy reads and writes.
    pub bytes: f64,
}

/// Rows, columns and vectors of the product; its arrays exceed the caches of most devices.
const EDGE: usize = 4096;
/// Of so many runs the fastest counts.
const RUNS: usize = 5;

impl Device {
    /// Measures them, in some milliseconds.
    ///
    /// # Errors
    /// Those of the device.
    pub fn ceilings<T: DeviceScalar>(&self) -> Result<Ceilings, Error> {
        let what = "a product of matrices";
        let products = Products::new::<T>(self)?;
        // Zeros would take less power, and run at higher clocks.
        let numbers: Vec<T> = (0..EDGE * EDGE).map(|i| T::of((0.618 * i as f64).fract() - 0.5)).collect();
        let matrix = Dense { data: self.upload(&numbers, what)?, rows: EDGE, cols: EDGE };
        let from = self.upload(&numbers, what)?;
        let mut to = self.zeros::<T>(EDGE * EDGE, what)?;
        let fastest = |run: &mut dyn FnMut() -> Result<(), Error>| {
            let mut least = f64::INFINITY;
            for _ in 0..RUNS {
                let start = self.mark()?;
                run()?;
                least = least.min(self.seconds(&start, &self.mark()?)?);
            }
            Ok(least)
        };
        let product = fastest(&mut || {
            let (from, to) = ((&from, EDGE, ALL.into()), (&to, EDGE, ALL.into()));
            // SAFETY: the arrays are of this shape.
            unsafe { products.multiply(&matrix, from, to, Which::All(EDGE), 1.0, false) }
        })?;
        // SAFETY: both arrays are as long.
        let copy = fastest(&mut || unsafe { self.copy_from(from.address(), &mut to, what) })?;
        Ok(Ceilings { operations: 2.0 * (EDGE as f64).powi(3) / product, bytes: 2.0 * from.bytes() as f64 / copy })
    }
}
