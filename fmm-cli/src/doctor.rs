//! `fmm doctor`: a report of the hardware and libraries of this machine.

use crate::{failure::Failure, print};
use std::fmt::Write;
use std::path::PathBuf;

/// Prints the report.
pub fn doctor() -> Result<(), Failure> {
    let mut out = String::new();
    let mut line = |key: &str, value: String| {
        let _ = writeln!(out, "{key:<18} {value}");
    };
    line("fmm", format!("{} for {}-{}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH, std::env::consts::OS));
    line("processor", fmm::processor().unwrap_or_else(|| "unknown".to_string()));
    let isas: Vec<&str> = fmm::Isa::available().into_iter().map(|isa| isa.name()).collect();
    line("instruction sets", format!("{} (best first)", isas.join(", ")));
    line("threads", std::thread::available_parallelism().map_or("unknown".to_string(), |n| n.to_string()));
    let gigabytes = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
    line("memory available", fmm::available_memory().map_or("unknown".to_string(), gigabytes));
    line("CUDA library", cuda_library().map_or("not found".to_string(), |p| p.display().to_string()));
    match fmm::Cuda::default().info() {
        Ok(gpu) => {
            let (major, minor) = gpu.capability;
            line("GPU", format!("{}, compute capability {major}.{minor}", gpu.name));
            line("GPU memory", gigabytes(gpu.memory));
            let version = |v: (i32, i32)| format!("{}.{}", v.0, v.1);
            line("CUDA driver", version((gpu.driver / 1000, gpu.driver % 1000 / 10)));
            line("NVRTC", version(gpu.compiler));
            line("backends", "cpu, cuda, hybrid".to_string());
        }
        Err(e) => {
            line("GPU", e.to_string());
            line("backends", "cpu".to_string());
        }
    }
    print(&out)
}

/// The path of the CUDA driver library, in the folders that loaders search.
fn cuda_library() -> Option<PathBuf> {
    let path = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let usual =
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/lib/wsl/lib"];
    let folders = path.split(':').filter(|f| !f.is_empty()).chain(usual);
    folders.map(|f| PathBuf::from(f).join("libcuda.so.1")).find(|p| p.exists())
}
