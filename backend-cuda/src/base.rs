//! What the points decide, whatever carries the far field: tree, lists, near field, and the ends of a run.

use crate::arrange::Arranger;
use crate::device::{Arg, Buffer, Device, Functions, blocks};
use crate::levels::{Units, strength_degrees, value_degrees};
use crate::lists::DeviceLists;
use crate::primitives::Primitives;
use crate::programs::{self, Groups, LEAF_THREADS};
use crate::tree::{DeviceTree, WALKERS};
use fmm_traits::{Error, Kernel, Real};
use std::sync::Arc;

/// Threads of the kernels with one number each.
const BLOCK: u32 = 256;

/// How points meet points and what they carry, for all sets of points of a plan.
#[derive(Debug)]
pub(crate) struct Near {
    arrange: Functions,
    p2p: Functions,
    units: Units,
    /// Strengths of a source, values of a target, by their degrees in length.
    strengths: Vec<i32>,
    values: Vec<i32>,
    /// Whether pairs are summed in units of the box.
    framed: bool,
    /// Targets that a block sums at once, and in which leaves are rounded up.
    group: usize,
    grain: usize,
    /// Whether anything is in f32, and strengths are divided by the largest.
    single: bool,
}

impl Near {
    /// For the kernel `S` with the near field in `N`; `single`: whether the far field is in f32.
    pub fn new<S: Kernel, N: Real>(device: &Device, units: Units, single: bool) -> Result<Self, Error> {
        let framed = N::NAME == "f32";
        Ok(Near {
            arrange: device.fixed("arrange", programs::arrange)?,
            p2p: device.load(&programs::p2p_program::<S, N>())?,
            units,
            strengths: strength_degrees::<S>(),
            values: value_degrees::<S>(),
            framed,
            group: Groups::near::<N>(S::VALUES).targets(),
            grain: Groups::near::<N>(S::VALUES).grain(),
            single: single || framed,
        })
    }
    /// Strengths of a source.
    pub fn strengths(&self) -> usize {
        self.strengths.len()
    }
    /// Values of a target.
    pub fn values(&self) -> usize {
        self.values.len()
    }
}

/// Points in their tree, and what changes with strengths at both ends.
#[derive(Debug)]
pub(crate) struct Base {
    pub tree: DeviceTree,
    pub lists: DeviceLists,
    /// Addresses of the arrays of boxes; lower corner of the root.
    pub boxes: Buffer<u64>,
    pub corner: Buffer<f64>,
    /// Tree order.
    pub strengths: Buffer<f64>,
    pub values: Buffer<f64>,
    /// Rows of `level.cuh` for P2P.
    table: Buffer<f64>,
    /// Of the strengths, in the root.
    factors: Buffer<f64>,
    /// Targets of P2P, and blocks that share one. Leaves of one size are together: so blocks that run at the same time are in the same
    /// part of the program, and none ends late.
    p2p: Buffer<u32>,
    parts: u32,
    arrange: Functions,
    /// Largest strength, as bits.
    largest: Buffer<u64>,
    /// Caller's order, made when somebody comes with arrays on the host: strengths, values.
    ends: Option<(Buffer<f64>, Buffer<f64>)>,
}

impl Base {
    /// Allocates for a tree and its lists.
    pub fn new(near: &Near, tree: DeviceTree, lists: DeviceLists) -> Result<Self, Error> {
        let device = &tree.device.clone();
        let boxes = device.upload(&tree.boxes.addresses(), "addresses of boxes")?;
        let (n, m, sides) = (tree.sources.len(), tree.targets.len(), sides(&tree));
        let degrees = [&near.strengths[..], &near.values[..]];
        let table =
            if near.framed { near.units.table(&sides, &degrees) } else { near.units.plain(sides.len(), &degrees) };
        let factors: Vec<f64> = near.strengths.iter().map(|&d| tree.side.powi(d)).collect();
        let functions = near.arrange.clone();
        let arranger = Arranger { tree: &tree, primitives: Primitives::new(device)?, functions, boxes: &boxes };
        let p2p = arranger.by_size(arranger.items([&lists.p2p; 3])?, near.grain)?;
        let parts = blocks_of_a_leaf(m, p2p.len(), near.group);
        Ok(Base {
            corner: device.upload(&tree.corner, "corner")?,
            strengths: device.alloc(n * near.strengths(), "strengths")?,
            values: device.alloc(m * near.values(), "values")?,
            table: device.upload(&table, "levels")?,
            factors: device.upload(&factors, "levels")?,
            largest: device.zeros(1, "largest strength")?,
            ends: None,
            tree,
            lists,
            boxes,
            p2p,
            parts,
            arrange: near.arrange.clone(),
        })
    }

    pub fn device(&self) -> &Device {
        &self.tree.device
    }
    /// Sides of the boxes of each level.
    pub fn sides(&self) -> Vec<f64> {
        sides(&self.tree)
    }
    /// What arranges the edges of this tree.
    pub fn arranger(&self) -> Result<Arranger<'_>, Error> {
        let primitives = Primitives::new(self.device())?;
        Ok(Arranger { tree: &self.tree, primitives, functions: self.arrange.clone(), boxes: &self.boxes })
    }
    /// Whether there is a far field.
    pub fn far(&self) -> bool {
        !(self.lists.p2m.is_empty() && self.lists.l2p.is_empty())
    }
    /// Blocks that share a leaf, of which each sums at `group` targets at once.
    pub fn parts(&self, group: usize) -> u32 {
        blocks_of_a_leaf(self.tree.targets.len(), self.p2p.len(), group)
    }

    /// Strengths and values in the caller's order.
    pub fn ends(&mut self) -> Result<(&mut Buffer<f64>, &Buffer<f64>), Error> {
        if self.ends.is_none() {
            let given = self.device().alloc(self.strengths.len(), "strengths")?;
            self.ends = Some((given, self.device().alloc(self.values.len(), "values")?));
        }
        let (given, values) = self.ends.as_mut().expect("they are there");
        Ok((given, values))
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let kinds: u64 = self.lists.kinds().iter().map(|k| k.bytes()).sum();
        let ends: u64 = self.ends.iter().map(|(given, values)| given.bytes() + values.bytes()).sum();
        self.tree.bytes() + kinds + ends + self.strengths.bytes() + self.values.bytes() + self.p2p.bytes()
    }

    /// What strengths are divided by: null where nothing is in f32.
    fn unit(&self, near: &Near) -> Arg {
        if near.single { (&self.largest).into() } else { 0u64.into() }
    }

    /// Enqueues strengths of the caller into tree order, and zeros for the values.
    pub fn scatter(&mut self, near: &Near, given: u64) -> Result<(), Error> {
        let device = self.device().clone();
        device.clear(&mut self.values)?;
        device.clear(&mut self.largest)?;
        let (points, width) = (&self.tree.sources, near.strengths());
        let grid = (blocks(self.strengths.len(), BLOCK as usize)?, 1);
        let (order, n) = ((&points.order).into(), (points.len() as u64).into());
        let args = [given.into(), order, n, (width as u32).into(), self.unit(near), (&self.strengths).into()];
        // SAFETY: arguments as in arrange.cu; both arrays have a row for each point.
        unsafe {
            if near.single {
                let all = [given.into(), n, (width as u32).into(), (&self.factors).into(), (&self.largest).into()];
                device.launch(&near.arrange, "largest", (grid.0.min(WALKERS), 1), BLOCK, &all)?;
            }
            device.launch(&near.arrange, "scatter", grid, BLOCK, &args)
        }
    }

    /// Enqueues values in tree order, times `scale`, into those of the caller.
    pub fn gather(&self, near: &Near, scale: f64, out: u64) -> Result<(), Error> {
        let (points, width) = (&self.tree.targets, near.values());
        let (order, n) = ((&points.order).into(), (points.len() as u64).into());
        let unit = self.unit(near);
        let args = [(&self.values).into(), order, n, (width as u32).into(), unit, scale.into(), out.into()];
        let grid = (blocks(self.values.len(), BLOCK as usize)?, 1);
        // SAFETY: arguments as in arrange.cu; both arrays have a row for each point.
        unsafe { self.device().launch(&near.arrange, "gather", grid, BLOCK, &args) }
    }

    /// Enqueues P2P, on the second stream or on the first.
    pub fn p2p(&self, near: &Near, beside: bool) -> Result<(), Error> {
        let tree = &self.tree;
        let same = Arc::ptr_eq(&tree.sources, &tree.targets);
        let args = [
            (&self.boxes).into(),
            (&self.corner).into(),
            (&self.table).into(),
            (&self.p2p).into(),
            (&self.lists.p2p.starts).into(),
            (&self.lists.p2p.sources).into(),
            u32::from(same).into(),
            (&tree.sources.xyz).into(),
            (tree.sources.len() as u64).into(),
            (&self.strengths).into(),
            (&tree.targets.xyz).into(),
            (tree.targets.len() as u64).into(),
            (&self.values).into(),
        ];
        let grid = (blocks(self.p2p.len(), 1)?, self.parts);
        let (device, threads) = (self.device(), LEAF_THREADS as u32);
        // SAFETY: arguments as in p2p.cu; values have a row for each target, and nothing else writes them before the
        // streams are joined.
        unsafe {
            if beside {
                device.launch_beside(&near.p2p, "p2p", grid, threads, &args)
            } else {
                device.launch(&near.p2p, "p2p", grid, threads, &args)
            }
        }
    }
}

fn sides(tree: &DeviceTree) -> Vec<f64> {
    (0..tree.level_start.len() - 1).map(|l| tree.side * (-(l as f64)).exp2()).collect()
}

/// Enough for leaves of twice the mean; in larger ones a block has several groups.
fn blocks_of_a_leaf(targets: usize, leaves: usize, group: usize) -> u32 {
    let mean = targets as f64 / leaves.max(1) as f64;
    (2.0 * mean / group as f64).ceil().clamp(1.0, 1024.0) as u32
}
