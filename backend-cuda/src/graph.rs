//! A recording of the stages of an evaluation, as a CUDA graph: one call of the driver launches all of them.
//!
//! While a thread records, its launches become nodes of the graph instead of running. A node depends on the nodes
//! before it in the same stream, and on those that a fork or a join adds. (Stream capture of the driver would record
//! the work of other threads in the same stream, too.)

use crate::device::FIRST_STREAM_PRIORITY;
use crate::error::failed;
use cudarc::driver::sys::{self, CUfunction, CUgraph, CUgraphExec, CUgraphNode};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use fmm_traits::Error;
use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

thread_local! {
    static RECORDING: RefCell<Option<Recording>> = const { RefCell::new(None) };
}

/// The two streams of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    /// The first stream.
    First,
    /// The second stream.
    Beside,
}

/// A launch of a kernel.
pub(crate) struct Launch<'a> {
    pub function: CUfunction,
    pub grid: [u32; 3],
    pub block: u32,
    /// Bytes of dynamic shared memory.
    pub bytes: u32,
    /// Addresses of the arguments.
    pub arguments: &'a mut [*mut c_void],
}

/// A graph that grows.
struct Recording {
    context: Arc<CudaContext>,
    graph: CUgraph,
    /// The nodes on which the next node of each stream depends.
    last: [Vec<CUgraphNode>; 2],
}

impl Drop for Recording {
    fn drop(&mut self) {
        // SAFETY: the graph is live, and nothing else has it.
        let _ = unsafe { result::graph::destroy(self.graph) };
    }
}

impl Recording {
    /// Adds a node by `add`, which gets the nodes on which it depends.
    fn add(
        &mut self,
        lane: Lane,
        add: impl FnOnce(*mut CUgraphNode, CUgraph, &[CUgraphNode]) -> Result<(), DriverError>,
    ) -> Result<CUgraphNode, DriverError> {
        let mut node: CUgraphNode = ptr::null_mut();
        add(&mut node, self.graph, &self.last[lane as usize])?;
        self.last[lane as usize] = vec![node];
        Ok(node)
    }

    fn launch(&mut self, lane: Lane, launch: &mut Launch) -> Result<(), DriverError> {
        let [x, y, z] = launch.grid;
        let parameters = sys::CUDA_KERNEL_NODE_PARAMS {
            func: launch.function,
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.bytes,
            kernelParams: launch.arguments.as_mut_ptr(),
            extra: ptr::null_mut(),
            kern: ptr::null_mut(),
            ctx: ptr::null_mut(),
        };
        // SAFETY: the driver copies the arguments, which live until the call returns.
        let node = self.add(lane, |node, graph, after| unsafe {
            sys::cuGraphAddKernelNode_v2(node, graph, after.as_ptr(), after.len(), &parameters).result()
        })?;
        if lane == Lane::First {
            let value = sys::CUlaunchAttributeValue { priority: FIRST_STREAM_PRIORITY };
            let which = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY;
            // SAFETY: the node is of a kernel, and the value is of this attribute.
            unsafe { sys::cuGraphKernelNodeSetAttribute(node, which, &value) }.result()?;
        }
        Ok(())
    }

    fn clear(&mut self, address: u64, bytes: usize) -> Result<(), DriverError> {
        let size = if bytes.is_multiple_of(4) { 4 } else { 1 };
        let width = bytes / size;
        let parameters = sys::CUDA_MEMSET_NODE_PARAMS {
            dst: address,
            pitch: bytes,
            value: 0,
            elementSize: size as u32,
            width,
            height: 1,
        };
        let context = self.context.cu_ctx();
        // SAFETY: the caller vouches for the memory.
        self.add(Lane::First, |node, graph, after| unsafe {
            sys::cuGraphAddMemsetNode(node, graph, after.as_ptr(), after.len(), &parameters, context).result()
        })?;
        Ok(())
    }

    /// Makes later nodes of one stream wait for the nodes that are now in the other.
    fn wait(&mut self, lane: Lane, other: Lane) {
        let more: Vec<CUgraphNode> =
            self.last[other as usize].iter().filter(|n| !self.last[lane as usize].contains(n)).copied().collect();
        self.last[lane as usize].extend(more);
    }
}

/// Calls `record` if this thread records; `None` if it does not.
fn recording<R>(record: impl FnOnce(&mut Recording) -> R) -> Option<R> {
    RECORDING.with_borrow_mut(|recording| recording.as_mut().map(record))
}

/// Records a launch; `None` if this thread does not record.
pub(crate) fn launch(lane: Lane, launch: &mut Launch) -> Option<Result<(), DriverError>> {
    recording(|r| r.launch(lane, launch))
}

/// Records filling memory with zeros; `None` if this thread does not record.
pub(crate) fn clear(address: u64, bytes: usize) -> Option<Result<(), DriverError>> {
    recording(|r| r.clear(address, bytes))
}

/// Records that `lane` waits for `other`; whether this thread records.
pub(crate) fn wait(lane: Lane, other: Lane) -> bool {
    recording(|r| r.wait(lane, other)).is_some()
}

/// When this value is dropped, also by an error or a panic, the recording of this thread ends.
struct Until;

impl Drop for Until {
    fn drop(&mut self) {
        RECORDING.set(None);
    }
}

/// Recorded work, ready to be launched.
#[derive(Debug)]
pub(crate) struct Graph {
    ready: CUgraphExec,
    stream: Arc<CudaStream>,
}
// SAFETY: the owner alone uses the graph, and the calls of the driver may come from any thread.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is live. The driver keeps what is running.
        let _ = unsafe { result::graph::exec_destroy(self.ready) };
    }
}

impl Graph {
    /// Records the work that `work` enqueues on the streams of a device. `work` only launches kernels, clears memory,
    /// forks and joins. `stream` is the first stream.
    pub fn record(stream: &Arc<CudaStream>, work: impl FnOnce() -> Result<(), Error>) -> Result<Graph, Error> {
        let failing = |e: DriverError| failed("recording an evaluation", e);
        let context = stream.context().clone();
        context.bind_to_thread().map_err(failing)?;
        let mut graph: CUgraph = ptr::null_mut();
        // SAFETY: the place outlives the call.
        unsafe { sys::cuGraphCreate(&mut graph, 0) }.result().map_err(failing)?;
        RECORDING.set(Some(Recording { context, graph, last: Default::default() }));
        let until = Until;
        work()?;
        // SAFETY: the graph is live until `until` goes.
        let ready = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) }.map_err(failing)?;
        drop(until);
        Ok(Graph { ready, stream: stream.clone() })
    }

    /// Enqueues the work on the first stream.
    pub fn launch(&self) -> Result<(), Error> {
        let failing = |e: DriverError| failed("launching a recorded evaluation", e);
        self.stream.context().bind_to_thread().map_err(failing)?;
        // SAFETY: graph and stream are live.
        unsafe { result::graph::launch(self.ready, self.stream.cu_stream()) }.map_err(failing)
    }
}
