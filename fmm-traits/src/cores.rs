//! The number of cores of this machine.

use std::sync::OnceLock;

/// Threads that this process can run at once; 1 if the system does not say. The system is asked once: for its answer it
/// reads files, which takes as long as several kernels on a GPU.
pub fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}
