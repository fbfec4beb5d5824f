//! Everything that does not depend on strengths: programs, operators, tables, arranged edges, workspaces.

use super::DeviceScalar;
use super::affine::DeviceAffine;
use super::arrange::{Arranged, Arranger, Items, Kind, Table};
use super::fourier::Families;
use super::operators::{DeviceOperators, surface_rows};
use super::recipe::Recipe;
use super::stages::{Run, Workspace};
use crate::device::{Buffer, Device, Functions};
use crate::lists::DeviceLists;
use crate::primitives::Primitives;
use crate::programs;
use crate::tree::DeviceTree;
use fmm_kernels::equivalent::operators::{MAX_ORDER, MIN_ORDER};
use fmm_kernels::equivalent::surface;
use fmm_traits::{Error, Family, Kernel, Observer, OutputColumns, Outputs, Real, Stage, Visitor, evaluate};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::path::PathBuf;

/// Most boxes with which P2P runs beside the far field.
const BESIDE: usize = 1 << 19;

/// A summation planned on the device: expansions in `T`, near field in `N`.
#[derive(Debug)]
pub struct Plan<T: DeviceScalar, N: Real> {
    recipe: Recipe<T>,
    pub(super) columns: Vec<OutputColumns>,
    pub(super) scale: f64,
    pub(super) shape: Shape,
    pub(super) programs: Programs,
    /// Operators, with the bits of the parameters of the unit box that they are for.
    stock: Vec<(Vec<u64>, DeviceOperators<T>)>,
    placed: Placed<T>,
    /// Whether P2P runs beside the far field; `None`: where it pays.
    beside: Option<bool>,
    near: PhantomData<N>,
}

/// Arrays of one evaluation in device memory, by their addresses.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// N×strengths numbers in f64, in the caller's order.
    pub strengths: u64,
    /// M×values numbers in f64, in the caller's order; overwritten.
    pub values: u64,
}

/// What the points decide.
#[derive(Debug)]
pub(super) struct Placed<T> {
    pub tree: DeviceTree,
    pub lists: DeviceLists,
    pub tables: Tables,
    /// Which operators of the stock each level takes.
    pub sets: Vec<u32>,
    pub edges: Edges<T>,
    pub affine: DeviceAffine<T>,
    /// Blocks that share a leaf: of P2P; of L2P and M2P.
    pub parts: [u32; 2],
    pub workspace: Workspace<T>,
}

/// Compiled stages.
#[derive(Debug)]
pub(super) struct Programs {
    pub arrange: Functions,
    pub p2m: Functions,
    pub multiply: Functions,
    pub affine: Functions,
    pub m2l: Functions,
    pub m2l_fourier: Functions,
    pub dft: Functions,
    pub l2p: Functions,
    pub p2p: Functions,
}

/// What the kernels read of boxes, levels and surfaces.
#[derive(Debug)]
pub(super) struct Tables {
    pub boxes: Buffer<u64>,
    pub corner: Buffer<f64>,
    pub inner: Buffer<f64>,
    pub outer: Buffer<f64>,
    /// Rows of `level.cuh` for P2M and P2L, for L2P and M2P, for P2P.
    pub check: Buffer<f64>,
    pub far: Buffer<f64>,
    pub near: Buffer<f64>,
}

/// Edges by operator; boxes that a stage works on.
#[derive(Debug)]
pub(super) struct Edges<T> {
    pub m2m: Arranged,
    pub m2l: Far<T>,
    pub l2l: Arranged,
    /// Leaves with a multipole, boxes with children in M2M, boxes with a local.
    pub leaves: Items,
    pub parents: Items,
    pub active: Items,
    /// Targets of L2P, M2P, P2P.
    pub l2p: Items,
    pub m2p: Items,
    pub p2p: Items,
}

/// The V list.
#[derive(Debug)]
pub(super) enum Far<T> {
    /// No edge.
    None,
    /// Families of boxes, for Fourier space.
    Fourier(Box<Families<T>>),
    /// Any boxes of one level, for dense matrices.
    Dense(Box<Table>),
}

/// Lengths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Points of a surface.
    pub points: usize,
    /// Numbers of a multipole or local.
    pub density: usize,
    /// Check values of a box.
    pub check: usize,
    /// Strengths of a source, values of a target.
    pub strengths: usize,
    pub values: usize,
}

impl<T: DeviceScalar, N: Real> Plan<T, N> {
    /// Plans order `p` for `family` on a tree and its lists; `cache` is a folder that keeps operators between runs.
    ///
    /// # Errors
    /// [`Error::Order`], [`Error::Edge`] for an edge between boxes that no operator joins, and those of
    /// the device.
    pub fn new<F: Family>(
        family: &F,
        outputs: Outputs,
        p: usize,
        cache: Option<PathBuf>,
        tree: DeviceTree,
        lists: DeviceLists,
    ) -> Result<Self, Error> {
        family.validate()?;
        let (params, scale) = (family.parameters(), family.scale());
        family.visit(outputs, New::<F, T, N> { params, scale, p, cache, tree, lists, of: PhantomData })?
    }

    /// Exchanges the points: a new tree and its lists. Operators are kept, and what buffers release serves the new
    /// ones. On an error the plan is as before.
    ///
    /// # Errors
    /// As [`new`](Plan::new).
    pub fn set_tree(&mut self, tree: DeviceTree, lists: DeviceLists) -> Result<(), Error> {
        self.placed = Placed::new(&self.recipe, self.shape, &self.programs, &mut self.stock, tree, lists)?;
        Ok(())
    }

    /// Whether P2P runs beside the far field (`None`: where it pays) or behind it: then the times of stages are those that
    /// each takes alone.
    pub fn set_beside(&mut self, beside: Option<bool>) {
        self.beside = beside;
    }

    /// M2L through Fourier space in parts of at most this many of the p frequencies along one axis, as where spectra do not
    /// fit; until the points change.
    pub fn set_m2l_part(&mut self, most: usize) {
        if let Far::Fourier(families) = &mut self.placed.edges.m2l {
            families.hold(most);
        }
    }

    /// It pays where levels of few boxes leave the device idle: with one component, 8 % at 2²⁰ points and 1 % at 2²⁴ (3·10⁵
    /// boxes); −8 % at 2²⁷ (2.5·10⁶ boxes), −5 to −9 % with three components.
    pub(super) fn beside(&self) -> bool {
        self.beside.unwrap_or(self.shape.density == self.shape.points && self.placed.tree.len() <= BESIDE)
    }

    /// Where each output lies among the values of a target.
    pub fn columns(&self) -> &[OutputColumns] {
        &self.columns
    }

    /// Values of a target.
    pub fn values(&self) -> usize {
        self.shape.values
    }

    /// The tree.
    pub fn tree(&self) -> &DeviceTree {
        &self.placed.tree
    }

    /// The edge lists.
    pub fn lists(&self) -> &DeviceLists {
        &self.placed.lists
    }

    /// Bytes of device memory held.
    pub fn bytes(&self) -> u64 {
        let Placed { tree, lists, edges, affine, workspace, .. } = &self.placed;
        let kinds: u64 = lists.kinds().iter().map(|k| k.bytes()).sum();
        let operators: u64 = self.stock.iter().map(|(_, o)| o.bytes()).sum();
        tree.bytes() + kinds + edges.bytes() + affine.bytes() + workspace.bytes() + operators
    }

    /// One evaluation: `strengths` N×strengths → values M×values, both in the caller's order; with the
    /// seconds of each stage on the device.
    ///
    /// # Errors
    /// As [`apply_into`](Plan::apply_into).
    pub fn apply(
        &mut self,
        strengths: &[f64],
        observer: Observer,
    ) -> Result<(Vec<f64>, [f64; Stage::ALL.len()]), Error> {
        let mut out = vec![0.0; self.placed.tree.targets.len() * self.shape.values];
        let seconds = self.apply_into(strengths, &mut out, observer)?;
        Ok((out, seconds))
    }

    /// [`apply`](Plan::apply) into a slice, which is overwritten.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Cancelled`], and those of the device.
    pub fn apply_into(
        &mut self,
        strengths: &[f64],
        out: &mut [f64],
        observer: Observer,
    ) -> Result<[f64; Stage::ALL.len()], Error> {
        let tree = &self.placed.tree;
        let shape = |array, found: usize, expected: usize, why: &str| {
            if found == expected { Ok(()) } else { Err(Error::Shape { array, found, expected, why: why.to_string() }) }
        };
        let expected = tree.sources.len() * self.shape.strengths;
        shape("strengths", strengths.len(), expected, "sources × strengths of the kernel")?;
        shape("values", out.len(), tree.targets.len() * self.shape.values, "targets × values of the kernel")?;
        let device = tree.device.clone();
        let workspace = &mut self.placed.workspace;
        let (given, values) = workspace.ends(&device)?;
        device.write(given, 0, strengths, "strengths")?;
        let ends = Ends { strengths: given.address(), values: values.address() };
        let mut run = Run::new(self, ends);
        evaluate(&mut run, &(), observer)?;
        let seconds = run.seconds()?;
        drop(run);
        device.read(self.placed.workspace.ends(&device)?.1, out, "values")?;
        Ok(seconds)
    }

    /// Enqueues one evaluation with arrays of the caller in device memory, behind what `stream` has; what that gets from
    /// here on is behind the evaluation. Does not wait for it.
    ///
    /// # Errors
    /// Those of the device. Errors of the evaluation itself come from whatever waits for it.
    ///
    /// # Safety
    /// `ends` are arrays of this device as long as [`apply_into`](Plan::apply_into) wants them, which stay until the
    /// evaluation is done; `stream` is a live stream of the device's primary context, or null for the default one.
    pub unsafe fn enqueue(&mut self, ends: Ends, stream: *mut c_void) -> Result<(), Error> {
        let device = self.device().clone();
        // SAFETY: that of the caller.
        unsafe { device.within(stream.cast(), || evaluate(&mut Run::new(self, ends), &(), &mut |_, _| true)) }
    }

    /// The operators of the boxes of a level.
    pub(super) fn operators(&self, level: usize) -> &DeviceOperators<T> {
        &self.stock[self.placed.sets[level] as usize].1
    }
    /// All operators, by number.
    pub(super) fn stock(&self) -> impl Iterator<Item = &DeviceOperators<T>> {
        self.stock.iter().map(|(_, o)| o)
    }
    pub(super) fn device(&self) -> &Device {
        &self.placed.tree.device
    }
    pub(super) fn placed(&self) -> &Placed<T> {
        &self.placed
    }
    pub(super) fn placed_mut(&mut self) -> &mut Placed<T> {
        &mut self.placed
    }
}

struct New<F, T, N> {
    params: Vec<f64>,
    scale: f64,
    p: usize,
    cache: Option<PathBuf>,
    tree: DeviceTree,
    lists: DeviceLists,
    of: PhantomData<(F, T, N)>,
}

impl<F: Family, T: DeviceScalar, N: Real> Visitor for New<F, T, N> {
    type Output = Result<Plan<T, N>, Error>;
    fn visit<S: Kernel, E: Kernel>(self, columns: Vec<OutputColumns>) -> Self::Output {
        let New { params, scale, p, cache, tree, lists, .. } = self;
        if !(MIN_ORDER..=MAX_ORDER).contains(&p) {
            return Err(Error::Order { order: p, min: MIN_ORDER, max: MAX_ORDER });
        }
        let device = tree.device.clone();
        let n = surface::len(p);
        let shape = Shape {
            points: n,
            density: n * F::Equivalent::STRENGTHS,
            check: n * F::Equivalent::VALUES,
            strengths: S::STRENGTHS,
            values: S::VALUES,
        };
        let programs = Programs {
            arrange: device.fixed("arrange", programs::arrange)?,
            p2m: device.load(&programs::p2m_program::<F::Check, T>(n))?,
            multiply: device.load(&programs::multiply_program::<T>())?,
            affine: device.load(&programs::affine_program::<T>())?,
            m2l: device.load(&programs::m2l_program::<T>())?,
            m2l_fourier: device.load(&programs::m2l_fourier_program::<T>())?,
            dft: device.load(&programs::dft_program::<T>(p))?,
            l2p: device.load(&programs::l2p_program::<E, T>())?,
            p2p: device.load(&programs::p2p_program::<S, N>())?,
        };
        let recipe = Recipe::new::<F, S, E, N>(params, p, cache);
        let mut stock = Vec::new();
        let placed = Placed::new(&recipe, shape, &programs, &mut stock, tree, lists)?;
        Ok(Plan { recipe, columns, scale, shape, programs, stock, placed, beside: None, near: PhantomData })
    }
}

impl<T: DeviceScalar> Placed<T> {
    /// Arranges edges and allocates; operators that are not in `stock` are added to it.
    fn new(
        recipe: &Recipe<T>,
        shape: Shape,
        programs: &Programs,
        stock: &mut Vec<(Vec<u64>, DeviceOperators<T>)>,
        tree: DeviceTree,
        lists: DeviceLists,
    ) -> Result<Self, Error> {
        let device = tree.device.clone();
        let levels = tree.level_start.len() - 1;
        let sides: Vec<f64> = (0..levels).map(|l| tree.side * (-(l as f64)).exp2()).collect();
        let mut sets = vec![0; levels];
        let far = !(lists.p2m.is_empty() && lists.l2p.is_empty());
        for (set, &side) in sets.iter_mut().zip(&sides).filter(|_| far) {
            let key: Vec<u64> = (recipe.unit)(&recipe.params, side).into_iter().map(f64::to_bits).collect();
            *set = match stock.iter().position(|(k, _)| *k == key) {
                Some(known) => known,
                None => {
                    stock.push((key, (recipe.operators)(&device, recipe, side)?));
                    stock.len() - 1
                }
            } as u32;
        }

        let boxes = device.upload(&tree.boxes.addresses(), "addresses of boxes")?;
        let (primitives, functions) = (Primitives::new(&device)?, programs.arrange.clone());
        let arranger = Arranger { tree: &tree, primitives, functions, boxes: &boxes };
        let m2l = if lists.m2l.is_empty() {
            Far::None
        } else {
            let families = Families::new(&arranger, &programs.m2l_fourier, &lists.m2l, &shape, recipe.order)?;
            match families {
                Some(families) => Far::Fourier(Box::new(families)),
                None => Far::Dense(Box::new(arranger.table(&lists.m2l, &programs.m2l, &sets, stock.len())?)),
            }
        };
        let used = if matches!(m2l, Far::None) { &[] } else { &sets[1..] };
        for &set in used {
            let o = &mut stock[set as usize].1;
            match m2l {
                Far::Fourier(_) if o.fourier.is_none() => o.fourier = Some((recipe.fourier)(&device, &o.host)?),
                Far::Dense(_) if o.dense.is_none() => o.dense = Some((recipe.dense)(&device, &o.host)?),
                _ => {}
            }
        }
        let by_child = 8 * levels;
        let edges = Edges {
            m2m: arranger.edges(&lists.m2m, Kind::M2m, by_child)?,
            m2l,
            l2l: arranger.edges(&lists.l2l, Kind::L2l, by_child)?,
            leaves: arranger.items([&lists.p2m; 3])?,
            parents: arranger.items([&lists.m2m; 3])?,
            active: arranger.items([&lists.m2l, &lists.p2l, &lists.l2l])?,
            l2p: arranger.items([&lists.l2p; 3])?,
            m2p: arranger.items([&lists.m2p; 3])?,
            p2p: arranger.items([&lists.p2p; 3])?,
        };
        let tables = Tables {
            corner: device.upload(&tree.corner, "corner")?,
            inner: device.upload(&surface_rows(recipe.order, surface::INNER), "surface")?,
            outer: device.upload(&surface_rows(recipe.order, surface::OUTER), "surface")?,
            check: device.upload(&recipe.check_table(&sides), "levels")?,
            far: device.upload(&recipe.far_table(&sides), "levels")?,
            near: device.upload(&recipe.near_table(&sides), "levels")?,
            boxes,
        };
        let rank = stock.iter().map(|(_, o)| o.upward[1].rows.max(o.downward[1].rows)).max().unwrap_or(0);
        let workspace = Workspace::new(&tree, &shape, rank, far, &edges)?;
        let affine = (recipe.affine)(&(recipe.unit)(&recipe.params, tree.side), recipe.order);
        let affine = DeviceAffine::new(&device, &affine, if far { tree.len() } else { 0 })?;
        // Enough for leaves of twice the mean; in larger ones a block has several groups.
        let mean = tree.targets.len() as f64 / edges.p2p.len().max(1) as f64;
        let parts = recipe.groups.map(|group| (2.0 * mean / group as f64).ceil().clamp(1.0, 1024.0) as u32);
        Ok(Placed { tree, lists, tables, sets, edges, affine, parts, workspace })
    }
}

impl<T: DeviceScalar> Edges<T> {
    fn bytes(&self) -> u64 {
        let arranged = |a: &Arranged| a.from.bytes() + a.to.bytes();
        let items = [&self.leaves, &self.parents, &self.active, &self.l2p, &self.m2p, &self.p2p];
        let boxes: u64 = items.iter().map(|i| i.boxes.bytes()).sum();
        let far = match &self.m2l {
            Far::None => 0,
            Far::Fourier(families) => families.bytes(),
            Far::Dense(table) => table.boxes.bytes() + table.table.bytes(),
        };
        boxes + arranged(&self.m2m) + arranged(&self.l2l) + far
    }
}

impl Table {
    /// Blocks of at most `edge` boxes of a set of operators, each within an octant.
    pub fn blocks(&self, set: usize, edge: usize) -> usize {
        self.starts[8 * set..=8 * set + 8].windows(2).map(|w| ((w[1] - w[0]) as usize).div_ceil(edge)).sum()
    }
}

impl Arranged {
    /// Whether there are edges to children of a level.
    pub fn any(&self, level: usize) -> bool {
        self.starts[8 * level] < self.starts[8 * level + 8]
    }
    /// Tiles of at most `edge` edges to children of a level, each within an octant.
    pub fn tiles(&self, level: usize, edge: usize) -> usize {
        self.starts[8 * level..=8 * level + 8].windows(2).map(|w| ((w[1] - w[0]) as usize).div_ceil(edge)).sum()
    }
}

impl Items {
    /// Items of a level: first, and how many.
    pub fn of(&self, level: usize) -> (usize, usize) {
        let (start, end) = (self.level_start[level] as usize, self.level_start[level + 1] as usize);
        (start, end - start)
    }
    /// How many on all levels.
    pub fn len(&self) -> usize {
        self.boxes.len()
    }
    /// The most of a level.
    pub fn widest(&self) -> usize {
        self.level_start.windows(2).map(|w| (w[1] - w[0]) as usize).max().unwrap_or(0)
    }
}
