//! Ranks over MPI, if the package was built with them.

use pyo3::prelude::*;

/// The ranks of a communicator of MPI.
#[pyclass(frozen, module = "fmm._core")]
pub struct World(pub fmm::ranks::World);

#[pymethods]
impl World {
    /// The ranks of the communicator with this Fortran handle. All of them call this together.
    #[cfg(feature = "mpi")]
    #[new]
    fn new(py: Python<'_>, handle: i32) -> PyResult<Self> {
        use crate::errors::raised;
        if fmm_mpi::all_ranks().is_err() {
            let text = "comm belongs to another MPI than the one with which fmm was built, or MPI does not run";
            return Err(pyo3::exceptions::PyValueError::new_err(text));
        }
        let settings = fmm_mpi::Settings::usual().map_err(raised)?;
        // SAFETY: the Python layer takes the handle from a communicator of mpi4py, and MPI of this library runs.
        py.detach(|| unsafe { fmm_mpi::from_handle(handle, settings) }).map(World).map_err(raised)
    }

    /// An error that says how to get ranks.
    #[cfg(not(feature = "mpi"))]
    #[new]
    fn new(handle: i32) -> PyResult<Self> {
        let _ = handle;
        let text = "this package was built without MPI: in a checkout, FMM_PYTHON_MPI=1 pip install ./python";
        Err(pyo3::exceptions::PyNotImplementedError::new_err(text))
    }

    /// The number of ranks.
    #[getter]
    fn size(&self) -> usize {
        self.0.size()
    }
}
