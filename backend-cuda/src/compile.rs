//! Compilation of CUDA C to machine code with NVIDIA's run-time compiler (NVRTC). It needs the library, but no device.

use cudarc::nvrtc::{result, sys};
use fmm_traits::{Error, kernel::MAX_PARAMETERS};
use libloading::Library;
use std::ffi::{CStr, CString, c_char};
use std::path::PathBuf;
use std::sync::OnceLock;

/// A CUDA source with everything that determines its machine code, except the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Name of the source file and of the variant, for error messages.
    pub name: String,
    /// CUDA C; headers of `kernels/shared` may be included by name.
    pub source: String,
    /// Entry points, `extern "C"`.
    pub entries: &'static [&'static str],
    /// Whether a·b + c may be fused. Programs that compute keys and boxes forbid fusion, so that results equal the
    /// CPU's.
    pub contract: bool,
}

/// A compiled program.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The binary that the driver loads.
    pub cubin: Vec<u8>,
    /// The compiler's log: registers, spills.
    pub log: String,
}

/// The headers that a program can include, by name.
const HEADERS: [(&CStr, &str); 27] = [
    (c"shared/intrinsics.cuh", include_str!("../kernels/shared/intrinsics.cuh")),
    (c"shared/real.cuh", include_str!("../kernels/shared/real.cuh")),
    (c"shared/reciprocal.cuh", include_str!("../kernels/shared/reciprocal.cuh")),
    (c"shared/warp.cuh", include_str!("../kernels/shared/warp.cuh")),
    (c"shared/look_back.cuh", include_str!("../kernels/shared/look_back.cuh")),
    (c"shared/frame.cuh", include_str!("../kernels/shared/frame.cuh")),
    (c"shared/tree.cuh", include_str!("../kernels/shared/tree.cuh")),
    (c"shared/boxes.cuh", include_str!("../kernels/shared/boxes.cuh")),
    (c"shared/kept.cuh", include_str!("../kernels/shared/kept.cuh")),
    (c"shared/source.cuh", include_str!("../kernels/shared/source.cuh")),
    (c"shared/task.cuh", include_str!("../kernels/shared/task.cuh")),
    (c"shared/group.cuh", include_str!("../kernels/shared/group.cuh")),
    (c"shared/harmonics.cuh", include_str!("../kernels/shared/harmonics.cuh")),
    (c"shared/level.cuh", include_str!("../kernels/shared/level.cuh")),
    (c"shared/complex.cuh", include_str!("../kernels/shared/complex.cuh")),
    (c"shared/lines.cuh", include_str!("../kernels/shared/lines.cuh")),
    (c"shared/field.cuh", include_str!("../kernels/shared/field.cuh")),
    (c"shared/copy.cuh", include_str!("../kernels/shared/copy.cuh")),
    (c"shared/point.cuh", include_str!("../kernels/shared/point.cuh")),
    (c"shared/series.cuh", include_str!("../kernels/shared/series.cuh")),
    (c"shared/slots.cuh", include_str!("../kernels/shared/slots.cuh")),
    (c"shared/offset.cuh", include_str!("../kernels/shared/offset.cuh")),
    (c"shared/tile.cuh", include_str!("../kernels/shared/tile.cuh")),
    (c"shared/pyramid.cuh", include_str!("../kernels/shared/pyramid.cuh")),
    (c"shared/fold.cuh", include_str!("../kernels/shared/fold.cuh")),
    (c"shared/random.cuh", include_str!("../kernels/shared/random.cuh")),
    (c"shared/product.cuh", include_str!("../kernels/shared/product.cuh")),
];

impl Program {
    /// Options for compute capability `(major, minor)`.
    fn options(&self, (major, minor): (u32, u32)) -> Vec<String> {
        vec![
            format!("--gpu-architecture=sm_{major}{minor}"),
            "--std=c++17".to_string(),
            format!("--fmad={}", self.contract),
            format!("--define-macro=PARAMETERS={MAX_PARAMETERS}"),
            // Makes generic lambdas device functions without an annotation.
            "--device-as-default-execution-space".to_string(),
            "--ptxas-options=-v".to_string(),
        ]
    }

    /// Everything that determines the machine code: compiler, driver, device, options, source, headers. The name of the
    /// program does not affect the machine code and is left out.
    pub(crate) fn fingerprint(&self, capability: (u32, u32), compiler: (i32, i32), driver: i32) -> String {
        let mut text = format!("nvrtc {}.{}, driver {driver}\n", compiler.0, compiler.1);
        text += &self.options(capability).join("\n");
        for (name, header) in HEADERS {
            text += &format!("\n// {}\n{header}", name.to_string_lossy());
        }
        text + "\n// source\n" + &self.source
    }
}

/// Folders in which NVRTC is searched before the system's library path: FMM_NVRTC, CUDA_PATH, and the folder of
/// NVIDIA's installers.
fn folders() -> impl Iterator<Item = PathBuf> {
    let named = std::env::var_os("FMM_NVRTC").map(PathBuf::from);
    let toolkit = std::env::var_os("CUDA_PATH").map(|p| PathBuf::from(p).join("lib64"));
    named.into_iter().chain(toolkit).chain([PathBuf::from("/usr/local/cuda/lib64")])
}

/// Version of the compiler. The first call loads the library, which stays loaded until the process ends.
pub(crate) fn compiler() -> Result<(i32, i32), Error> {
    static LOADED: OnceLock<Option<(i32, i32)>> = OnceLock::new();
    let version = LOADED.get_or_init(|| {
        // Later look-ups by name alone find a library that is already open. The compiler finds its companion
        // library in the same way.
        for folder in folders() {
            // SAFETY: NVIDIA's libraries have no initialisers beyond their own state.
            let open = |name: &str| unsafe { Library::new(folder.join(name)) };
            let companion = open("libnvrtc-builtins.so.13.0").or_else(|_| open("libnvrtc-builtins.so"));
            if let (Ok(a), Ok(b)) = (companion, open("libnvrtc.so.13").or_else(|_| open("libnvrtc.so"))) {
                std::mem::forget((a, b));
                break;
            }
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the calls only open libraries, and the two numbers outlive the second call.
        unsafe {
            if !sys::is_culib_present() {
                return None;
            }
            sys::nvrtcVersion(&mut major, &mut minor).result().ok()?;
        }
        Some((major, minor))
    });
    version.ok_or_else(|| Error::NoDevice {
        reason: "the run-time compiler libnvrtc is not there (FMM_NVRTC may name its folder)".to_string(),
    })
}

/// An NVRTC program, destroyed on drop.
struct Handle(sys::nvrtcProgram);
impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by nvrtcCreateProgram and destroyed here only. A failure leaves nothing to do.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

/// Compiles `program` for compute capability `(major, minor)`.
///
/// # Errors
/// [`Error::NoDevice`] without the library, [`Error::DeviceCompile`] with the compiler's log.
pub fn compile(program: &Program, capability: (u32, u32)) -> Result<Compiled, Error> {
    compiler()?;
    let refused = |log: String| Error::DeviceCompile { kernel: program.name.clone(), log };
    let text = |s: &str| CString::new(s).map_err(|e| refused(e.to_string()));
    let source = text(&program.source)?;
    let headers = HEADERS.iter().map(|h| text(h.1)).collect::<Result<Vec<_>, _>>()?;
    let bodies: Vec<*const c_char> = headers.iter().map(|h| h.as_ptr()).collect();
    let names: Vec<*const c_char> = HEADERS.iter().map(|h| h.0.as_ptr()).collect();
    let said = |e: result::NvrtcError| refused(e.to_string());

    let mut raw = std::ptr::null_mut();
    // SAFETY: all strings end in 0 and outlive the handle made from them.
    unsafe {
        sys::nvrtcCreateProgram(
            &mut raw,
            source.as_ptr(),
            c"program.cu".as_ptr(),
            names.len() as i32,
            bodies.as_ptr(),
            names.as_ptr(),
        )
    }
    .result()
    .map_err(said)?;
    let handle = Handle(raw);

    // SAFETY: the handle is live.
    let compiled = unsafe { result::compile_program(handle.0, &program.options(capability)) };
    // SAFETY: the handle is live.
    let log = unsafe { result::get_program_log(handle.0) }.unwrap_or_default();
    let log: Vec<u8> = log.into_iter().map(|c| c as u8).take_while(|&c| c != 0).collect();
    let log = String::from_utf8_lossy(&log).into_owned();
    compiled.map_err(|e| refused(format!("{e}\n{log}")))?;

    let mut size = 0;
    // SAFETY: the handle is live and compiled; the buffer is as long as the library says.
    let cubin = unsafe {
        sys::nvrtcGetCUBINSize(handle.0, &mut size).result().map_err(said)?;
        let mut cubin = vec![0u8; size];
        sys::nvrtcGetCUBIN(handle.0, cubin.as_mut_ptr().cast()).result().map_err(said)?;
        cubin
    };
    Ok(Compiled { cubin, log })
}
