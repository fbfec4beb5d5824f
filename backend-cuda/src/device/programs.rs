//! Programs on a device: compiled once, kept in memory and on disk.

use super::Device;
use super::signature::{Signature, signatures};
use crate::cache;
use crate::compile::{Program, compile};
use crate::error::failed;
use crate::pinned::joined;
use crate::programs::{self, Named};
use crate::shares::programs::OF_SHARES;
use cudarc::driver::sys::CUfunction_attribute;
use cudarc::driver::{CudaFunction, DriverError};
use cudarc::nvrtc::Ptx;
use fmm_traits::Error;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The entry points of a loaded program, by name.
pub(crate) type Functions = Arc<HashMap<&'static str, (CudaFunction, Signature)>>;

/// A program; `None` before it is loaded. Whoever needs it while another thread loads it waits.
pub(super) type Loaded = Arc<Mutex<Option<Functions>>>;

/// The functions of `loaded`, which `load` loads if nobody has done so.
fn loaded(loaded: Loaded, load: impl FnOnce() -> Result<Functions, Error>) -> Result<Functions, Error> {
    // A poisoned lock is fine: the functions are inserted whole.
    let mut functions = loaded.lock().unwrap_or_else(PoisonError::into_inner);
    match &*functions {
        Some(functions) => Ok(functions.clone()),
        None => Ok(functions.insert(load()?).clone()),
    }
}

impl Device {
    /// Loads the programs without parameters that a plan in space needs: those that build a tree, and those of lists, of the
    /// probe and of arrays. A program that is not loaded is loaded at its first use. So a caller may load them early, while it
    /// does other things.
    ///
    /// # Errors
    /// Errors of the device and of the compiler.
    pub fn load_programs_of_plans(&self) -> Result<(), Error> {
        self.while_loading(&programs::OF_PLANS_ON_TREES, || self.load_programs_of_trees())
    }

    /// As [`load_programs_of_plans`](Device::load_programs_of_plans), of the programs that build a tree only.
    ///
    /// # Errors
    /// Errors of the device and of the compiler.
    pub fn load_programs_of_trees(&self) -> Result<(), Error> {
        self.fixed_together(&programs::OF_TREES)
    }

    /// As [`load_programs_of_plans`](Device::load_programs_of_plans), for plans by Laurent series, whose trees are pyramids of the
    /// plane.
    ///
    /// # Errors
    /// Errors of the device and of the compiler.
    pub fn load_programs_of_pyramids(&self) -> Result<(), Error> {
        self.fixed_together(&programs::OF_PYRAMIDS)
    }

    /// As [`load_programs_of_plans`](Device::load_programs_of_plans), of the further programs by which several ranks share one
    /// tree.
    ///
    /// # Errors
    /// Errors of the device and of the compiler.
    pub fn load_programs_of_shares(&self) -> Result<(), Error> {
        self.fixed_together(&OF_SHARES)
    }

    /// Loads `program`: from memory, else from the disk cache, else compiled.
    pub(crate) fn load(&self, program: &Program) -> Result<Functions, Error> {
        let info = &self.inner.info;
        let fingerprint = program.fingerprint(info.capability, info.compiler, info.driver);
        // Nobody holds this lock while a program is compiled.
        let mut programs = self.inner.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let known = programs.entry(fingerprint.clone()).or_default().clone();
        drop(programs);
        loaded(known, || self.load_anew(program, &fingerprint))
    }

    /// Loads a program from the disk cache, or compiles it.
    fn load_anew(&self, program: &Program, fingerprint: &str) -> Result<Functions, Error> {
        let info = &self.inner.info;
        let folder = self.cache.as_deref();
        let cubin = match folder.and_then(|f| cache::load(f, fingerprint)) {
            Some(cubin) => cubin,
            None => {
                let cubin = compile(program, info.capability)?.cubin;
                if let Some(folder) = folder {
                    cache::store(folder, fingerprint, &cubin)?;
                }
                cubin
            }
        };
        let loading = |e: DriverError| failed(&format!("loading {}", program.name), e);
        let module = self.inner.context.load_module(Ptx::from_binary(cubin)).map_err(loading)?;
        let declared = signatures(&program.source);
        let mut functions = HashMap::new();
        for &entry in program.entries {
            let signature = declared.get(entry).cloned().ok_or_else(|| Error::Device {
                call: format!("loading {}", program.name),
                reason: format!("its source does not declare {entry}"),
            })?;
            functions.insert(entry, (module.load_function(entry).map_err(loading)?, signature));
        }
        Ok(Arc::new(functions))
    }

    /// [`load`](Device::load) of several programs, which are compiled at the same time.
    pub(crate) fn load_together<const K: usize>(&self, programs: [Program; K]) -> Result<[Functions; K], Error> {
        let loaded: Vec<Result<Functions, Error>> = std::thread::scope(|scope| {
            let threads = programs.each_ref().map(|program| scope.spawn(|| self.load(program)));
            threads.into_iter().map(joined).collect()
        });
        let mut loaded = loaded.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter();
        Ok(std::array::from_fn(|_| loaded.next().expect("as many as there are programs")))
    }

    /// [`load`](Device::load) of a program whose kernels are launched with `bytes` of dynamic shared memory.
    pub(crate) fn load_sharing(&self, program: &Program, bytes: usize) -> Result<Functions, Error> {
        let functions = self.load(program)?;
        let most = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        for (function, _) in functions.values() {
            let set = function.set_attribute(most, bytes as i32);
            set.map_err(|e| failed(&format!("{bytes} bytes of shared memory for {}", program.name), e))?;
        }
        Ok(functions)
    }

    /// [`load`](Device::load) of a program without parameters. `program` is called only on the first use of `name`.
    pub(crate) fn fixed(&self, name: &'static str, program: fn() -> Program) -> Result<Functions, Error> {
        let known = self.inner.fixed.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default().clone();
        loaded(known, || self.load(&program()))
    }

    /// [`fixed`](Device::fixed) of several programs, which are compiled at the same time.
    pub(crate) fn fixed_together(&self, programs: &[Named]) -> Result<(), Error> {
        self.while_loading(programs, || Ok(()))
    }

    /// Does some `work` while programs are loaded, as by [`fixed_together`](Device::fixed_together).
    pub(crate) fn while_loading<R>(
        &self,
        programs: &[Named],
        work: impl FnOnce() -> Result<R, Error>,
    ) -> Result<R, Error> {
        let missing: Vec<Named> = {
            let known = self.inner.fixed.lock().unwrap_or_else(PoisonError::into_inner);
            // What another thread loads counts as missing.
            let is_loaded =
                |name: &str| known.get(name).is_some_and(|known| known.try_lock().is_ok_and(|known| known.is_some()));
            programs.iter().filter(|(name, _)| !is_loaded(name)).copied().collect()
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                missing.into_iter().map(|(name, program)| scope.spawn(move || self.fixed(name, program))).collect();
            let done = work()?;
            threads.into_iter().try_for_each(|thread| joined(thread).map(|_| ()))?;
            Ok(done)
        })
    }
}
