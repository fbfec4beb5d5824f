//! Every member kernel of every family, with gradient and Hessian, in both precisions, printed as
//! CUDA C and compiled for sm_90 with NVRTC: no GPU is needed, only the library
//! (`scripts/nvrtc.sh`; its directory is taken from FMM_NVRTC or is target/nvrtc).

use fmm_kernels::{Gravity, Laplace, LaplaceDipole, LaplaceMixed, Stokes, StokesPressure, Stresslet, Yukawa};
use fmm_traits::lane::dot;
use fmm_traits::{Family, Gradient, Hessian, Kernel, Lane, OutputColumns, Outputs, Real, Visitor, record};
use libloading::{Library, Symbol};
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

type Program = *mut std::ffi::c_void;

/// The few entry points that are needed.
struct Nvrtc {
    library: Library,
    /// Kept open: the compiler looks it up by name.
    _builtins: Library,
}

impl Nvrtc {
    fn open() -> Result<Nvrtc, String> {
        let folder = std::env::var_os("FMM_NVRTC").map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/nvrtc/nvidia/cu13/lib"),
            PathBuf::from,
        );
        let load = |name: &str| {
            // SAFETY: NVIDIA's libraries have no initialisers beyond their own state.
            unsafe { Library::new(folder.join(name)) }.map_err(|e| {
                format!(
                    "no NVRTC in {} ({e}): run scripts/nvrtc.sh, or name the directory of {name} in FMM_NVRTC",
                    folder.display()
                )
            })
        };
        let _builtins = load("libnvrtc-builtins.so.13.0")?;
        Ok(Nvrtc { library: load("libnvrtc.so.13")?, _builtins })
    }

    /// Compiles for sm_90; returns the size of the binary and the log, or the log as an error.
    fn compile(&self, source: &str) -> Result<(usize, String), String> {
        let text = CString::new(source).map_err(|e| e.to_string())?;
        let options = [c"--gpu-architecture=sm_90".as_ptr(), c"--ptxas-options=-v".as_ptr()];
        // SAFETY: names and signatures are those of nvrtc.h, release 13; every pointer outlives its
        // call, the log is as long as the library says, and the program is destroyed once.
        unsafe {
            let get = |name: &[u8]| -> Symbol<unsafe extern "C" fn(Program, *mut usize) -> c_int> {
                self.library.get(name).expect("an entry point of NVRTC")
            };
            let create: Symbol<
                unsafe extern "C" fn(
                    *mut Program,
                    *const c_char,
                    *const c_char,
                    c_int,
                    *const *const c_char,
                    *const *const c_char,
                ) -> c_int,
            > = self.library.get(b"nvrtcCreateProgram\0").map_err(|e| e.to_string())?;
            let compile: Symbol<unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int> =
                self.library.get(b"nvrtcCompileProgram\0").map_err(|e| e.to_string())?;
            let read_log: Symbol<unsafe extern "C" fn(Program, *mut c_char) -> c_int> =
                self.library.get(b"nvrtcGetProgramLog\0").map_err(|e| e.to_string())?;
            let destroy: Symbol<unsafe extern "C" fn(*mut Program) -> c_int> =
                self.library.get(b"nvrtcDestroyProgram\0").map_err(|e| e.to_string())?;

            let mut program: Program = null_mut();
            let status = create(&mut program, text.as_ptr(), c"pair.cu".as_ptr(), 0, null_mut(), null_mut());
            if status != 0 {
                return Err(format!("nvrtcCreateProgram: {status}"));
            }
            let status = compile(program, options.len() as c_int, options.as_ptr());
            let (mut log_size, mut size) = (0, 0);
            get(b"nvrtcGetProgramLogSize\0")(program, &mut log_size);
            let mut log = vec![0u8; log_size.max(1)];
            read_log(program, log.as_mut_ptr().cast());
            if status == 0 {
                get(b"nvrtcGetCUBINSize\0")(program, &mut size);
            }
            destroy(&mut program);
            let log = String::from_utf8_lossy(&log).trim_matches('\0').to_string();
            if status == 0 { Ok((size, log)) } else { Err(format!("status {status}\n{log}")) }
        }
    }
}

/// The pair function of `K`, and a kernel that sums it over all sources into registers.
fn source<K: Kernel, T: Real>(name: &str) -> String {
    let (real, strengths, values) = (if T::NAME == "f32" { "float" } else { "double" }, K::STRENGTHS, K::VALUES);
    let pair = record::record::<K>().cuda::<T>(&format!("{name}_pair"));
    format!(
        "{pair}
extern \"C\" __global__ void {name}(const {real}* params, const {real}* xyz, const {real}* strengths, {real}* out, int n) {{
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  {real} sum[{values}] = {{}};
  for (int j = 0; j < n; ++j) {{
    {real} q[{strengths}], u[{values}];
    for (int k = 0; k < {strengths}; ++k) q[k] = strengths[j * {strengths} + k];
    {name}_pair(params, xyz[3 * i] - xyz[3 * j], xyz[3 * i + 1] - xyz[3 * j + 1], xyz[3 * i + 2] - xyz[3 * j + 2], q, u);
    for (int k = 0; k < {values}; ++k) sum[k] += u[k];
  }}
  for (int k = 0; k < {values}; ++k) out[i * {values} + k] = sum[k];
}}
"
    )
}

/// Sources by name; members that several families share appear once.
#[derive(Default)]
struct Sources(BTreeMap<String, String>);

impl Sources {
    fn member<K: Kernel>(&mut self, suffix: &str) {
        for (precision, print) in
            [("f32", source::<K, f32> as fn(&str) -> String), ("f64", source::<K, f64> as fn(&str) -> String)]
        {
            let name = format!("{}{suffix}_{precision}", K::NAME);
            let text = print(&name);
            let known = self.0.insert(name.clone(), text.clone());
            // The velocity of a Stokeslet has two types, one with a faster gradient.
            assert!(known.is_none_or(|k| k == text || K::NAME == "stokes"), "two kernels are called {name}");
        }
    }
    fn family<F: Family>(&mut self, family: &F) {
        self.member::<F::Check>("");
        self.member::<F::Equivalent>("");
        for (outputs, suffix) in
            [(Outputs::POTENTIAL, ""), (Outputs::GRADIENT, "_gradient"), (Outputs::HESSIAN, "_hessian")]
        {
            for outputs in [outputs, outputs | Outputs::PRESSURE] {
                if family.outputs().contains(outputs) {
                    family.visit(outputs, Add(self, suffix)).expect("an output that the family has");
                }
            }
        }
    }
}

/// Adds the near and the far kernel of a plan.
struct Add<'a>(&'a mut Sources, &'a str);
impl Visitor for Add<'_> {
    type Output = ();
    fn visit<S: Kernel, E: Kernel>(self, _: Vec<OutputColumns>) {
        self.0.member::<S>(self.1);
        self.0.member::<E>(self.1);
    }
}

/// A kernel of the plane.
#[derive(Clone, Debug)]
struct Flat;
impl Kernel for Flat {
    const NAME: &'static str = "flat";
    const DIM: usize = 2;
    fn eval<V: Lane>(_: &[V], r: &[V], q: &[V], u: &mut [V]) {
        u[0] = q[0] * dot(r, r).rsqrt();
    }
    fn value_degree(_: usize) -> i32 {
        -1
    }
}

fn all_sources() -> Sources {
    let mut sources = Sources::default();
    sources.family(&Laplace);
    sources.family(&LaplaceDipole);
    sources.family(&LaplaceMixed);
    sources.family(&Yukawa { kappa: 1.0 });
    sources.family(&Gravity { g: 1.0, softening: 0.1 });
    sources.family(&StokesPressure { mu: 1.0 });
    sources.family(&Stresslet { mu: 1.0 });
    sources.family(&Stokes { mu: 1.0 });
    sources.family(&Flat);
    sources
}

#[test]
fn every_kernel_compiles_for_sm_90() -> Result<(), String> {
    let nvrtc = Nvrtc::open()?;
    let Sources(sources) = all_sources();
    // 15 members of which three (the check kernels) have no derivatives, in two precisions.
    assert_eq!(sources.len(), 2 * (12 * 3 + 3), "{:?}", sources.keys());
    for (name, text) in &sources {
        let (size, log) = nvrtc.compile(text).unwrap_or_else(|log| panic!("{name}: {log}\n{text}"));
        let usage: Vec<&str> = log.lines().filter(|l| l.contains("Used ") || l.contains("spill")).collect();
        println!("{name}: {size} bytes; {}", usage.join("; "));
        assert!(size > 0, "{name}: no binary");
        assert!(log.contains("0 bytes spill stores, 0 bytes spill loads"), "{name} spills registers:\n{log}");
    }
    Ok(())
}

#[test]
fn broken_source_does_not_compile() -> Result<(), String> {
    let broken = source::<Laplace, f32>("laplace").replace("rsqrtf", "rsqrtff");
    let log = Nvrtc::open()?.compile(&broken).expect_err("an undefined function");
    assert!(log.contains("rsqrtff"), "{log}");
    Ok(())
}

/// Floating-point operations of a pair, counted by hand: r² 5, its root 1, the potential 1; for the
/// gradient of Laplace 2 + 3 more, for its Hessian 2 + 3 + 9 more. Nothing is left of the constants
/// and nothing is done twice.
#[test]
fn tapes_are_as_short_as_by_hand() {
    assert_eq!(record::record::<Laplace>().flops(), 7);
    assert_eq!(record::record::<Gradient<Laplace>>().flops(), 12);
    assert_eq!(record::record::<Hessian<Laplace>>().flops(), 26);
    assert_eq!(record::record::<Stokes>().flops(), 22);
    assert_eq!(record::record::<Gradient<Yukawa>>().flops(), 17);
}
