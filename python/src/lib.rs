//! The private module `fmm._core`: plans and kernels of the library as Python classes. It takes arrays that the Python
//! layer has checked: flat, C-contiguous, of the right type. Shapes, defaults and documentation are in `fmm/*.py`.

mod device;
mod dlpack;
mod errors;
mod interrupt;
mod jax;
mod kernel;
mod plan;
mod ranks;
mod xla;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use super::device::DeviceArray;
    #[pymodule_export]
    use super::dlpack::Taken;
    #[pymodule_export]
    use super::jax::{Registered, forget_kept_plans, xla_handler};
    #[pymodule_export]
    use super::kernel::Kernel;
    #[pymodule_export]
    use super::plan::{Plan, calibrate, memory, open_for};
    #[pymodule_export]
    use super::ranks::World;
    use super::*;

    /// What is found about a GPU: its name, or why there is none.
    #[pyfunction]
    fn device(py: Python<'_>, number: usize) -> PyResult<String> {
        let info = py.detach(|| fmm::Cuda { device: number, ..Default::default() }.info()).map_err(errors::raised)?;
        Ok(info.name)
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
