//! The pool of device memory, which keeps freed buffers for reuse.

use crate::error::failed;
use cudarc::driver::sys::{CUmemPool_attribute, CUmemoryPool};
use cudarc::driver::{CudaContext, DriverError, result};
use fmm_traits::Error;

/// The driver's memory pool of a device. Freed buffers stay in it, so that the next plan of the same size takes no
/// memory from the driver. By default the driver would take freed memory back at every synchronisation, which costs
/// more time than the work on small trees.
#[derive(Debug)]
pub(crate) struct Pool(CUmemoryPool);
// SAFETY: a handle of the driver, whose calls may come from any thread.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// The pool of the device, set to keep freed memory.
    pub fn keep(context: &CudaContext) -> Result<Pool, Error> {
        let asking = |e: DriverError| failed("asking for the pool of memory", e);
        let mut threshold = u64::MAX;
        let (attribute, value) = (CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &raw mut threshold);
        // SAFETY: the device exists, and the attribute is a number of 64 bits.
        unsafe {
            let pool = result::device::get_default_mem_pool(context.cu_device()).map_err(asking)?;
            result::mem_pool::set_attribute(pool, attribute, value.cast()).map_err(asking)?;
            Ok(Pool(pool))
        }
    }
    fn number(&self, attribute: CUmemPool_attribute) -> Result<u64, Error> {
        let mut bytes = 0u64;
        // SAFETY: the pool belongs to a device, and both attributes are numbers of 64 bits.
        unsafe { result::mem_pool::get_attribute(self.0, attribute, (&raw mut bytes).cast()) }
            .map_err(|e| failed("asking for the pool of memory", e))?;
        Ok(bytes)
    }
    /// Bytes taken from the driver.
    pub fn reserved(&self) -> Result<u64, Error> {
        self.number(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
    }
    /// Bytes taken from the driver that no buffer uses.
    pub fn unused(&self) -> Result<u64, Error> {
        Ok(self.reserved()?.saturating_sub(self.number(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?))
    }
}
