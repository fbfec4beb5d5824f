//! Loops over pairs that the system's C compiler makes from the operations of a kernel. Such a loop is about as fast as
//! one that was compiled with the library, while the interpreter pays for loading and storing each result.
//!
//! The text of a loop consists of `native.c` and one line per operation. Names of a kernel never enter it, only
//! operations and their numbers. e^x, ln, sin, cos and the special functions are those of the interpreter: the loop
//! calls back for a block of numbers.

use super::code::{Code, Operand, Step, Terms};
use crate::lanes::{Isa, Vectorized, dispatch};
use fmm_traits::tape::Op;
use fmm_traits::{Error, Lane, Real, Simd, SimdLane};
use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The part of a loop that is the same for all kernels.
const FRAME: &str = include_str!("native.c");
/// Most targets of a block. Four independent chains of operations hide the latency of a vector unit.
const MOST_TARGETS: usize = 4;
/// Sums of the targets of a block, which should leave half of the 32 vector registers to operations. More of them, each
/// loaded and stored for every pair, take up to twice as long (`runs/2026-11-25-zen4x2/pair-rates-of-derivatives.txt`).
const SUMS_IN_REGISTERS: usize = 16;
/// Largest number of sets of strengths that share the evaluation of a kernel.
pub const MAX_SETS: usize = 8;

/// The arguments of a loop; `native.c` explains them.
#[repr(C)]
pub struct Arguments<T> {
    pub targets: [*const T; 6],
    pub n: isize,
    pub rows: *const T,
    pub stride: isize,
    pub begin: isize,
    pub end: isize,
    pub sets: isize,
    pub own: isize,
    pub skip: isize,
    pub scalars: *const T,
    pub out: *mut T,
    pub function: unsafe extern "C" fn(u32, isize, *mut T),
}

/// The loop of a kernel.
pub struct Loop<T> {
    run: unsafe extern "C" fn(*const Arguments<T>),
    function: unsafe extern "C" fn(u32, isize, *mut T),
    width: usize,
    /// Holds the code of `run`.
    _library: Arc<libloading::Library>,
}

impl<T: Real> Loop<T> {
    /// Compiles the loop of a kernel for an instruction set and coordinates of so many `pieces`, unless this process has
    /// compiled it before.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the words of the compiler, or of the system if there is no compiler.
    pub fn new(code: &Code, pieces: usize, isa: Isa) -> Result<Self, Error> {
        /// Libraries by their texts and options.
        static LIBRARIES: Mutex<Option<HashMap<String, Arc<libloading::Library>>>> = Mutex::new(None);

        let width = dispatch(isa, Width(std::marker::PhantomData::<T>));
        let text = text::<T>(code, pieces, width);
        let options = options(isa);
        let key = format!("{options:?}\n{text}");
        let mut libraries = LIBRARIES.lock().unwrap_or_else(PoisonError::into_inner);
        let libraries = libraries.get_or_insert_default();
        let library = match libraries.get(&key) {
            Some(library) => library.clone(),
            None => {
                let library = Arc::new(compiled(&text, options)?);
                libraries.insert(key, library.clone());
                library
            }
        };
        // SAFETY: `native.c` defines the function with these arguments.
        let run = unsafe { library.get::<unsafe extern "C" fn(*const Arguments<T>)>(b"fmm_pairs\0") };
        let run = *run.map_err(|e| refused(e.to_string()))?;
        Ok(Loop { run, function: functions::<T>(isa), width, _library: library })
    }

    /// Numbers in a vector.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Adds the sums to `out`.
    ///
    /// # Safety
    /// The arrays have the sizes that `native.c` states, and nothing else writes them meanwhile.
    pub unsafe fn add(&self, mut arguments: Arguments<T>) {
        arguments.function = self.function;
        // SAFETY: as promised.
        unsafe { (self.run)(&arguments) };
    }
}

/// A function that never runs, until [`Loop::add`] replaces it.
pub unsafe extern "C" fn no_function<T>(_: u32, _: isize, _: *mut T) {}

/// Numbers in a vector of an instruction set.
struct Width<T>(std::marker::PhantomData<T>);

impl<T: Real> Vectorized for Width<T> {
    type Output = usize;
    const SINGLE: bool = T::EPSILON > 1e-10;
    #[inline(always)]
    fn run<S: Simd>(self) -> usize {
        <T::Vector<S> as SimdLane>::WIDTH
    }
}

/// Options of the compiler for an instruction set. No `-ffast-math`: NaN and r = 0 must stay what they are.
fn options(isa: Isa) -> &'static [&'static str] {
    match isa {
        Isa::Avx512 => &["-mavx512f", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"],
        Isa::Avx2 => &["-mavx2", "-mfma"],
        Isa::Portable => &[],
    }
}

/// The text of a loop.
fn text<T: Real>(code: &Code, pieces: usize, width: usize) -> String {
    let (real, integer) = if T::NAME == "f32" { ("float", "int") } else { ("double", "long long") };
    let mut text = String::new();
    // Writing to a String cannot fail.
    let mut define = |name: &str, value: &str| {
        let _ = writeln!(text, "#define {name} {value}");
    };
    define("REAL", real);
    define("INTEGER", integer);
    let sets = if code.unit { MAX_SETS } else { 1 };
    let scalars = code.scalars.values().len().max(1);
    let targets = (SUMS_IN_REGISTERS / code.values.len().max(1)).clamp(1, MOST_TARGETS);
    let numbers = [
        ("WIDTH", width),
        ("TARGETS", targets),
        ("PIECES", pieces),
        ("STRENGTHS", code.strengths),
        ("VALUES", code.values.len()),
        ("SCALARS", scalars),
        ("UNIT", usize::from(code.unit)),
        ("MAX_SETS", sets),
    ];
    numbers.iter().for_each(|(name, value)| define(name, &value.to_string()));

    let place = |operand: Operand| match operand {
        Operand::Block(b) => format!("b{b}[k]"),
        Operand::Scalar(i) => format!("c[{i}]"),
        Operand::Strength(i) => format!("q[{i}]"),
    };
    let blocks: String = (0..code.blocks).map(|b| format!("V b{b}[TARGETS]; ")).collect();
    // r·r, 1/|r| and |r| after the coordinates.
    let input = |k: usize| match k {
        4 => "reciprocal_root(x3[k])".to_string(),
        5 => "x3[k] * reciprocal_root(x3[k])".to_string(),
        _ => format!("x{k}[k]"),
    };
    let copied =
        |(k, block): (usize, &Option<usize>)| block.map(|b| format!("b{b}[k] = {}; ", input(k))).unwrap_or_default();
    let inputs: String = code.inputs.iter().enumerate().map(copied).collect();
    define("DECLARE", &format!("{blocks}EACH {{ {inputs}}}"));

    let mut operations = String::new();
    for instruction in &code.instructions {
        let args: Vec<String> = instruction.args.iter().map(|&a| place(a)).collect();
        let arg = |k: usize| args.get(k).map_or("", String::as_str);
        let (a, b, c) = (arg(0), arg(1), arg(2));
        let to = format!("b{}", instruction.to);
        let op = match instruction.step {
            Step::One(op) => op,
            Step::Product(_) => {
                let _ = write!(operations, "EACH {to}[k] = {}; ", args.join(" * "));
                continue;
            }
            Step::Sum(terms) => {
                let _ = write!(operations, "EACH {to}[k] = {}; ", sum_of_products(terms, &args));
                continue;
            }
        };
        let expression = match op {
            Op::Add => format!("{a} + {b}"),
            Op::Sub => format!("{a} - {b}"),
            Op::Mul | Op::And => format!("{a} * {b}"),
            Op::Div => format!("{a} / {b}"),
            Op::Neg => format!("-{a}"),
            Op::Fma => format!("product_and_sum({a}, {b}, {c})"),
            Op::Rsqrt => format!("reciprocal_root({a})"),
            Op::Sqrt => format!("{a} * reciprocal_root({a})"),
            Op::Lt => format!("flag({a} < {b})"),
            Op::Le => format!("flag({a} <= {b})"),
            Op::Eq => format!("flag({a} == {b})"),
            Op::Or => format!("flag({a} + {b} != 0)"),
            Op::Not => format!("flag({a} == 0)"),
            Op::Select => format!("pick({a} == 0, {c}, {b})"),
            op => {
                if let Some(which) = Op::FUNCTIONS.iter().position(|&f| f == op) {
                    let _ =
                        write!(operations, "EACH {to}[k] = {a}; s->function({which}, TARGETS * WIDTH, (REAL *){to}); ");
                }
                continue;
            }
        };
        let _ = write!(operations, "EACH {to}[k] = {expression}; ");
    }
    define("OPERATIONS", &operations);

    let mut values = String::from("(V){0}");
    for (i, value) in code.values.iter().enumerate().rev() {
        let args: Vec<String> = value.args.iter().map(|&a| place(a)).collect();
        values = format!("(i) == {i} ? (V)({}) : {values}", sum_of_products(value.terms, &args));
    }
    define("VALUE(i, k)", &format!("({values})"));
    text + FRAME
}

/// A sum of products in C.
fn sum_of_products(terms: Terms, args: &[String]) -> String {
    if terms.plus + terms.minus == 0 {
        return args.concat();
    }
    let term = |(k, pair): (usize, &[String])| {
        let sign = if k < terms.plus { "+" } else { "-" };
        format!("{sign} {}", pair.join(" * "))
    };
    args.chunks(2).enumerate().map(term).collect::<Vec<_>>().join(" ")
}

/// The error of a loop that cannot be made.
fn refused(reason: String) -> Error {
    Error::Unsupported { operation: "a pair loop from the C compiler", reason }
}

/// Compiles `text` and loads the result.
fn compiled(text: &str, options: &[&str]) -> Result<libloading::Library, Error> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("fmm-{}-{number}", std::process::id()));
    let system = |e: std::io::Error| refused(format!("{}: {e}", folder.display()));
    // An existing folder is an error, so that nobody else can have put files there.
    std::fs::create_dir(&folder).map_err(system)?;
    let made = in_folder(&folder, text, options);
    // A loaded library needs no file.
    let removed = std::fs::remove_dir_all(&folder).map_err(system);
    let library = made?;
    removed.map(|()| library)
}

/// Compiles `text` in an empty folder and loads the result.
fn in_folder(folder: &Path, text: &str, options: &[&str]) -> Result<libloading::Library, Error> {
    let (source, library) = (folder.join("pairs.c"), folder.join("pairs.so"));
    std::fs::write(&source, text).map_err(|e| refused(format!("{}: {e}", source.display())))?;
    let compiler = std::env::var("CC").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "cc".to_string());
    let mut command = Command::new(&compiler);
    command.args(["-std=gnu11", "-O3", "-shared", "-fPIC", "-fno-math-errno", "-ffp-contract=fast", "-w"]);
    let done = command.args(options).arg("-o").arg(&library).arg(&source).output();
    let done = done.map_err(|e| refused(format!("the compiler {compiler} does not start: {e}")))?;
    if !done.status.success() {
        let words = String::from_utf8_lossy(&done.stderr);
        return Err(refused(format!(
            "{compiler}: {}",
            words.lines().find(|line| line.contains("error")).unwrap_or(&words)
        )));
    }
    // SAFETY: the library was compiled from `native.c` a moment ago; it has no code that runs when it is loaded.
    unsafe { libloading::Library::new(&library) }.map_err(|e| refused(e.to_string()))
}

/// The function by which a loop for `isa` asks for function `which` of [`Op::FUNCTIONS`].
fn functions<T: Real>(isa: Isa) -> unsafe extern "C" fn(u32, isize, *mut T) {
    match isa {
        Isa::Avx512 => function::<T, 0>,
        Isa::Avx2 => function::<T, 1>,
        Isa::Portable => function::<T, 2>,
    }
}

/// Replaces `n` numbers, a multiple of the width of vectors, by function `which` of them.
unsafe extern "C" fn function<T: Real, const ISA: usize>(which: u32, n: isize, numbers: *mut T) {
    let isa = const { [Isa::Avx512, Isa::Avx2, Isa::Portable][ISA] };
    // SAFETY: the loop passes a block of its own with `n` numbers.
    let numbers = unsafe { std::slice::from_raw_parts_mut(numbers, n as usize) };
    dispatch(isa, Replace { op: Op::FUNCTIONS[which as usize], numbers });
}

/// Replaces numbers by a function of them.
struct Replace<'a, T> {
    op: Op,
    numbers: &'a mut [T],
}

impl<T: Real> Vectorized for Replace<'_, T> {
    type Output = ();
    const SINGLE: bool = T::EPSILON > 1e-10;
    #[inline(always)]
    fn run<S: Simd>(self) {
        macro_rules! each {
            (|$x:ident| $result:expr) => {
                for vector in self.numbers.chunks_exact_mut(<T::Vector<S> as SimdLane>::WIDTH) {
                    // SAFETY: `vector` has as many numbers as a vector.
                    unsafe {
                        let $x = <T::Vector<S> as SimdLane>::load(vector.as_ptr());
                        ($result).store(vector.as_mut_ptr());
                    }
                }
            };
        }
        match self.op {
            Op::Exp => each!(|x| x.exp()),
            Op::Ln => each!(|x| x.ln()),
            Op::Sin => each!(|x| x.sin()),
            Op::Cos => each!(|x| x.cos()),
            Op::Erf => each!(|x| x.erf()),
            Op::BesselK0 => each!(|x| x.bessel_k0()),
            Op::BesselK1 => each!(|x| x.bessel_k1()),
            _ => {}
        }
    }
}
