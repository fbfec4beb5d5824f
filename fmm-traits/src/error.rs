//! The one error type of the workspace. Every variant carries the numbers a caller needs.

/// The errors of the workspace.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A NaN or an infinity in an input array.
    #[error("{array}[{row}, {column}] is {value}: every entry must be finite")]
    NotFinite {
        /// Which array: sources, targets, strengths, or an output.
        array: &'static str,
        /// Row of the first bad entry.
        row: usize,
        /// Column of the first bad entry.
        column: usize,
        /// Its value.
        value: f64,
    },
    /// Points too far apart, or too close together, for powers of their distances.
    #[error("the points span {extent:e}: powers of their distances stay in the range of f64 from {low:e} to {high:e}")]
    Extent {
        /// Largest side of the box around all points.
        extent: f64,
        /// Smallest allowed extent of points that do not all coincide.
        low: f64,
        /// Largest allowed extent.
        high: f64,
    },
    /// An array whose shape does not fit.
    #[error("{array} has {found} numbers, expected {expected} ({why})")]
    Shape {
        /// Which array.
        array: &'static str,
        /// Numbers found.
        found: usize,
        /// Numbers expected.
        expected: usize,
        /// Where the expectation comes from.
        why: String,
    },
    /// An array in device memory, or a stream, that cannot be used.
    #[error("{array}: {reason}")]
    Array {
        /// Which array.
        array: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A tolerance that is not a positive finite number.
    #[error("tolerance {tolerance} is not a positive finite number")]
    Tolerance {
        /// What was asked.
        tolerance: f64,
    },
    /// A tolerance below what the precision and the kernel can reach.
    #[error("tolerance {tolerance:e} is below the floor {floor:e} of {output} for {kernel} in {precision}{hint}")]
    ToleranceFloor {
        /// What was asked.
        tolerance: f64,
        /// The smallest tolerance that can be promised.
        floor: f64,
        /// The output that sets the floor.
        output: &'static str,
        /// Kernel name.
        kernel: std::sync::Arc<str>,
        /// f32 or f64.
        precision: &'static str,
        /// What to do instead.
        hint: String,
    },
    /// Both a tolerance and an order were given.
    #[error("both a tolerance ({tolerance:e}) and an order ({order}) were given: choose one")]
    ToleranceAndOrder {
        /// The tolerance.
        tolerance: f64,
        /// The order.
        order: usize,
    },
    /// An order outside the supported range.
    #[error("order {order} is outside {min}..={max}")]
    Order {
        /// What was asked.
        order: usize,
        /// Smallest.
        min: usize,
        /// Largest.
        max: usize,
    },
    /// A kernel or plan parameter outside its domain.
    #[error("{name} = {value}: {requirement}")]
    Parameter {
        /// Parameter name.
        name: &'static str,
        /// Its value.
        value: f64,
        /// What it must satisfy.
        requirement: &'static str,
    },
    /// A stated fact of a kernel that its values contradict.
    #[error("{fact} of kernel {kernel} does not hold at r = {r:?}: {stated} gives {expected:e}, found {found:e}")]
    Fact {
        /// Kernel name.
        kernel: std::sync::Arc<str>,
        /// Which fact: an item of [`Kernel`](crate::Kernel), or a property that all kernels have.
        fact: &'static str,
        /// The statement of the kernel.
        stated: String,
        /// Target − source.
        r: [f64; 3],
        /// The number that follows from the statement.
        expected: f64,
        /// The number that the kernel yields.
        found: f64,
    },
    /// A kernel in text that cannot be read.
    #[error("line {line}, column {column}: {reason}")]
    KernelText {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What is wrong.
        reason: String,
    },
    /// A name of a kernel that is not known.
    #[error("there is no kernel {name}; known are {known}")]
    UnknownKernel {
        /// The name.
        name: String,
        /// The known names.
        known: String,
    },
    /// A parameter of a kernel that has no value.
    #[error("parameter {name} of kernel {kernel} has no value")]
    MissingParameter {
        /// Kernel name.
        kernel: std::sync::Arc<str>,
        /// Parameter name.
        name: String,
    },
    /// A parameter that the kernel does not have.
    #[error("the kernel has no parameter {name}; it has {known}")]
    UnknownParameter {
        /// Parameter name.
        name: String,
        /// The parameters that the kernel has.
        known: String,
    },
    /// No output was requested.
    #[error("no output was requested")]
    NoOutput,
    /// An output that the kernel does not have.
    #[error("kernel {kernel} has no output {output}; it has {supported}")]
    UnsupportedOutput {
        /// Kernel name.
        kernel: std::sync::Arc<str>,
        /// What was asked.
        output: String,
        /// The outputs that the kernel has.
        supported: String,
    },
    /// An operation that this kernel or plan does not allow.
    #[error("{operation} is not available: {reason}")]
    Unsupported {
        /// What was asked.
        operation: &'static str,
        /// Why not.
        reason: String,
    },
    /// The forecast memory exceeds the free memory.
    #[error("{needed} bytes are needed and {available} are available: {what}")]
    Memory {
        /// Forecast bytes.
        needed: u64,
        /// Free bytes of the machine.
        available: u64,
        /// What the memory is for.
        what: String,
    },
    /// More of something than the integer types hold.
    #[error("{what}: {found} exceeds the limit {limit}")]
    TooMany {
        /// The kind of object that is counted.
        what: &'static str,
        /// Number found.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// A box violates an invariant, or an expansion cannot take an edge of the lists.
    #[error("{what} (target box {target}, source box {source_box})")]
    Edge {
        /// What is wrong.
        what: String,
        /// Target box.
        target: u32,
        /// Source box.
        source_box: u32,
    },
    /// The caller's callback asked to stop.
    #[error("cancelled before {stage}")]
    Cancelled {
        /// The stage that would have come next.
        stage: &'static str,
    },
    /// A numerical routine failed.
    #[error("{routine} failed on a matrix of {rows} × {columns}")]
    Numerical {
        /// Routine.
        routine: &'static str,
        /// Rows.
        rows: usize,
        /// Columns.
        columns: usize,
    },
    /// The thread pool could not be made.
    #[error("cannot start {threads} threads: {reason}")]
    Threads {
        /// Number of threads.
        threads: usize,
        /// The system's words.
        reason: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {reason}")]
    Io {
        /// Which file.
        path: String,
        /// The system's words.
        reason: String,
    },
    /// No CUDA device can be used.
    #[error("no CUDA device: {reason}")]
    NoDevice {
        /// The missing part: driver, device or the library of the run-time compiler.
        reason: String,
    },
    /// The run-time compiler refused a device kernel.
    #[error("{kernel} does not compile for the device: {log}")]
    DeviceCompile {
        /// Which kernel.
        kernel: String,
        /// The compiler's words.
        log: String,
    },
    /// A call of the device's driver failed. Lack of memory is [`Error::Memory`] instead.
    #[error("{call} failed on the device: {reason}")]
    Device {
        /// The call, with the kernel or buffer it was for.
        call: String,
        /// The driver's words.
        reason: String,
    },
    /// A rank failed; all ranks return its error.
    #[error("rank {rank}: {error}")]
    Rank {
        /// The rank.
        rank: usize,
        /// Its error.
        error: Box<Error>,
    },
    /// A rank ended, or stayed silent.
    #[error("rank {rank} is lost: {reason}")]
    RankLost {
        /// The rank.
        rank: usize,
        /// How the other ranks noticed it.
        reason: String,
    },
    /// Ranks asked for different things.
    #[error("ranks differ in {what}: rank {rank} has {found}, rank 0 has {expected}")]
    RanksDiffer {
        /// The part of the request that differs.
        what: String,
        /// The first rank that differs from rank 0.
        rank: usize,
        /// The value of `rank`.
        found: String,
        /// The value of rank 0.
        expected: String,
    },
}

impl Error {
    /// Whether memory does not suffice, here or on another rank.
    pub fn lacks_memory(&self) -> bool {
        match self {
            Error::Rank { error, .. } => error.lacks_memory(),
            e => matches!(e, Error::Memory { .. }),
        }
    }
}
