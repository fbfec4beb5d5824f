//! The far fields of a sum: one, or one for each node of the attributes of sources ([`fmm_traits::attributes`]).

use super::DeviceScalar;
use super::plan::Equivalent;
use crate::base::Base;
use crate::device::{Arg, Buffer, Device, Functions, blocks};
use crate::far::FarField;
use crate::plan::Ahead;
use crate::programs;
use crate::ranks::Ranks;
use fmm_kernels::equivalent::Lattice;
use fmm_traits::{Error, Kernels};
use std::path::PathBuf;

/// Threads of a block of `nodes.cu`.
const THREADS: u32 = 256;

/// Sources as one far field of several has them: strengths times their [weight](fmm_traits::weight) in this far field,
/// and the attributes of its node.
#[derive(Debug)]
pub(super) struct Part {
    functions: Functions,
    /// Rows of `nodes.cu`, one for each factor.
    factors: Buffer<f64>,
    count: usize,
    /// Numbers of a source, and how many of them are strengths; the attributes come behind.
    widths: [usize; 2],
}

impl Part {
    /// The part of sources in far field `k` of `kernels`; `None` if there is one far field.
    pub fn new(device: &Device, kernels: &Kernels, k: usize) -> Result<Option<Self>, Error> {
        if kernels.nodes.count() == 1 {
            return Ok(None);
        }
        let factors = kernels.nodes.factors(k);
        let row = |factor: &fmm_traits::Factor| {
            let head =
                [factor.attribute as f64, factor.value, factor.power.into(), factor.zeros.len() as f64, factor.scale];
            head.into_iter().chain(factor.zeros.iter().copied()).collect::<Vec<f64>>()
        };
        let rows: Vec<f64> = factors.iter().flat_map(row).collect();
        Ok(Some(Part {
            functions: device.fixed("nodes", programs::nodes)?,
            factors: device.upload(&rows, "nodes")?,
            count: factors.len(),
            widths: [kernels.near.strengths, kernels.near.linear()],
        }))
    }

    /// Room for the numbers of `n` sources.
    pub fn room(&self, device: &Device, n: usize) -> Result<Buffer<f64>, Error> {
        device.alloc(n * self.widths[0], "strengths")
    }

    /// Enqueues the kernel that writes the sources of `base`, as this far field has them, to `to`.
    pub fn take(&self, base: &Base, to: &Buffer<f64>) -> Result<(), Error> {
        let (n, [width, linear]) = (base.tree.sources.len(), self.widths.map(|width| width as u32));
        let args = [
            (&base.strengths).into(),
            (n as u64).into(),
            width.into(),
            linear.into(),
            (&self.factors).into(),
            (self.count as u32).into(),
            ((self.factors.len() / self.count) as u32).into(),
            Arg::from(to),
        ];
        let grid = (blocks(n, THREADS as usize)?, 1);
        // SAFETY: arguments as in nodes.cu; both arrays have a row for each source. Rows of factors are equally long,
        // because all attributes of a grid have the same number of nodes.
        unsafe { base.device().launch(&self.functions, "take_part", grid, THREADS, &args) }
    }
}

/// The far fields of a plan, which add to the same values. Each stage runs for one far field after the other.
#[derive(Debug)]
pub(crate) struct Fields<T: DeviceScalar>(Vec<Equivalent<T>>);

impl<T: DeviceScalar> Fields<T> {
    /// The far fields on a `lattice` for the `kernels` of a family, without points. `cache` is the folder that keeps
    /// operators between runs.
    ///
    /// # Errors
    /// [`Error::Order`], and errors of the device.
    pub fn new(
        device: &Device,
        kernels: &Kernels,
        lattice: Lattice,
        cache: Option<PathBuf>,
        ahead: Option<Ahead>,
    ) -> Result<Self, Error> {
        let field = |k| Equivalent::new(device, kernels, k, (lattice, cache.clone()), ahead);
        (0..kernels.nodes.count()).map(field).collect::<Result<_, _>>().map(Fields)
    }
}

impl<T: DeviceScalar> FarField for Fields<T> {
    fn place(&mut self, base: &Base) -> Result<(), Error> {
        let placed = self.0.iter_mut().map(|field| field.take(base)).collect::<Result<Vec<_>, _>>()?;
        self.0.iter_mut().zip(placed).for_each(|(field, placed)| field.place(placed));
        Ok(())
    }
    fn p2m(&mut self, base: &Base) -> Result<(), Error> {
        self.0.iter_mut().try_for_each(|field| field.p2m(base))
    }
    fn m2m(&mut self, base: &Base, level: usize) -> Result<(), Error> {
        self.0.iter().try_for_each(|field| field.m2m(base, level))
    }
    fn exchange(&mut self, base: &Base, ranks: &Ranks) -> Result<(), Error> {
        self.0.iter().try_for_each(|field| field.exchange(base, ranks))
    }
    fn m2l(&mut self, base: &Base) -> Result<(), Error> {
        self.0.iter_mut().try_for_each(|field| field.m2l(base))
    }
    fn p2l(&mut self, base: &Base) -> Result<(), Error> {
        self.0.iter().try_for_each(|field| field.p2l(base))
    }
    fn l2l(&mut self, base: &Base, level: usize) -> Result<(), Error> {
        self.0.iter().try_for_each(|field| field.l2l(base, level))
    }
    fn l2p(&mut self, base: &Base) -> Result<(), Error> {
        self.0.iter().try_for_each(|field| field.l2p(base))
    }
    fn m2p(&mut self, base: &Base) -> Result<(), Error> {
        self.0.iter().try_for_each(|field| field.m2p(base))
    }
    fn hold(&mut self, most: usize) {
        self.0.iter_mut().for_each(|field| field.hold(most));
    }
    fn leaves_room(&self) -> bool {
        self.0.iter().all(Equivalent::leaves_room)
    }
    fn bytes(&self) -> u64 {
        self.0.iter().map(Equivalent::held).sum()
    }
}
