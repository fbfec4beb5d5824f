//! The data of equivalent densities on the device: programs, operators, and the tables and workspaces for the points.

use super::DeviceScalar;
use super::affine::DeviceAffine;
use super::fields::Part;
use super::fourier::Families;
use super::operators::{DeviceOperators, Maker, Prepared, rows};
use super::recipe::Recipe;
use crate::arrange::{Arranged, Items, Upward};
use crate::base::Base;
use crate::device::{Buffer, Device, Functions};
use crate::products::{Across, Products};
use crate::programs;
use fmm_kernels::equivalent::Lattice;
use fmm_traits::{Error, Kernels};

/// A far field by equivalent densities, with expansions in `T`.
#[derive(Debug)]
pub(super) struct Equivalent<T: DeviceScalar> {
    pub(super) recipe: Recipe,
    /// What makes the strengths of its sources; `None` for the strengths of the sum.
    pub(super) part: Option<Part>,
    pub(super) shape: Shape,
    pub(super) programs: Programs,
    /// All operators made so far, with the same numbers in all far fields of a plan.
    stock: Vec<DeviceOperators<T>>,
    /// Stands for the spectra of levels that have none.
    pub(super) no_spectra: Buffer<T>,
    /// `None` before the first points.
    placed: Option<Placed<T>>,
}

/// The part of the far field that depends on the points.
#[derive(Debug)]
pub(super) struct Placed<T> {
    pub tables: Tables,
    /// For each level: the number of its operators in the stock.
    pub sets: Vec<u32>,
    pub affine: DeviceAffine<T>,
    pub workspace: Workspace<T>,
    /// Whether there is a far field.
    far: bool,
}

/// The compiled programs of the stages.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    pub operators: Functions,
    pub p2m: Functions,
    pub products: Products,
    pub affine: Functions,
    pub m2l_fourier: Functions,
    pub dft: Functions,
    pub l2p: Functions,
}

/// Tables of levels and surfaces for the kernels.
#[derive(Debug)]
pub(super) struct Tables {
    /// Points of the inner surface.
    pub inner: Buffer<f64>,
    /// Points of the outer surface.
    pub outer: Buffer<f64>,
    /// Rows of `level.cuh` for P2M.
    pub p2m: Buffer<f64>,
    /// Rows of `level.cuh` for P2L.
    pub p2l: Buffer<f64>,
    /// Rows of `level.cuh` for L2P.
    pub l2p: Buffer<f64>,
    /// Rows of `level.cuh` for M2P.
    pub m2p: Buffer<f64>,
}

/// Edges by operator, and the boxes on which each stage works.
#[derive(Debug)]
pub(super) struct Edges<T> {
    pub m2m: Upward,
    /// M2M edges that follow the exchange with other ranks.
    pub after: Option<Upward>,
    pub m2l: VList<T>,
    pub l2l: Arranged,
    /// Leaves with a multipole.
    pub leaves: Items,
    /// Boxes with a local.
    pub active: Items,
}

/// The V list in the form that M2L needs.
#[derive(Debug)]
pub(super) enum VList<T> {
    /// No edges.
    None,
    /// Families of boxes, for Fourier space.
    Fourier(Box<Families<T>>),
    /// Any boxes of one level, for dense matrices.
    Dense(Box<Across<T>>),
}

/// Lengths of the rows of a box.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Points of a surface.
    pub points: usize,
    /// Number of scalars in a multipole or local.
    pub density: usize,
    /// Check values of a box.
    pub check: usize,
}

/// Workspaces: one row per box, rewritten by each evaluation.
#[derive(Debug)]
pub(super) struct Workspace<T> {
    /// Strengths of the sources in this far field; empty if they are those of the sum.
    pub strengths: Buffer<f64>,
    pub multipoles: Buffer<T>,
    /// Net strengths of each box, in the order of [`DeviceOperators::units`].
    pub nets: Buffer<f64>,
    pub locals: Buffer<T>,
    /// Check values of multipoles on the way up, and of locals on the way down.
    pub check: Buffer<T>,
    /// Intermediate results between the two factors of a solve.
    pub middle: Buffer<T>,
}

impl Programs {
    /// Loads the programs for the kernels of a family on a `lattice`.
    pub fn load<T: DeviceScalar>(device: &Device, kernels: &Kernels, lattice: Lattice) -> Result<Self, Error> {
        let Kernels { far, members, .. } = kernels;
        let [multiply, m2l] = Products::programs::<T>();
        let [operators, p2m, affine, m2l_fourier, dft, l2p, multiply, m2l] = device.load_together([
            programs::operators_program::<T>(&members.equivalent, lattice),
            programs::p2m_program::<T>(&members.check, lattice.len()),
            programs::affine_program::<T>(members.check.values),
            programs::m2l_fourier_program::<T>(lattice.dim),
            programs::dft_program::<T>(lattice),
            programs::l2p_program::<T>(far),
            multiply,
            m2l,
        ])?;
        let products = Products::of(device, [multiply, m2l]);
        Ok(Programs { operators, p2m, products, affine, m2l_fourier, dft, l2p })
    }
}

impl<T: DeviceScalar> Equivalent<T> {
    /// A far field without points and operators.
    pub fn new(device: &Device, recipe: Recipe, part: Option<Part>, programs: Programs) -> Result<Self, Error> {
        let (n, kernel) = (recipe.lattice.len(), &recipe.members.equivalent);
        let shape = Shape { points: n, density: n * kernel.strengths, check: n * kernel.values };
        let no_spectra = device.alloc(0, "spectra of M2L")?;
        Ok(Equivalent { recipe, part, shape, programs, stock: Vec::new(), no_spectra, placed: None })
    }

    /// Adds operators to the stock.
    pub(super) fn add(&mut self, device: &Device, prepared: &Prepared<T>) -> Result<(), Error> {
        let operators = maker(device, &self.recipe, &self.programs).operators(prepared)?;
        self.stock.push(operators);
        Ok(())
    }

    /// Drops all operators but the first `count`.
    pub(super) fn keep(&mut self, count: usize) {
        self.stock.truncate(count);
    }

    /// Makes the operators of M2L of a set.
    pub(super) fn add_m2l(&mut self, device: &Device, set: usize, fourier: bool) -> Result<(), Error> {
        let Equivalent { recipe, programs, stock, .. } = self;
        maker(device, recipe, programs).m2l(&mut stock[set], fourier)
    }

    /// The operators of a level.
    pub(super) fn operators(&self, placed: &Placed<T>, level: usize) -> &DeviceOperators<T> {
        &self.stock[placed.sets[level] as usize]
    }
    /// All operators, by number.
    pub(super) fn stock(&self) -> impl Iterator<Item = &DeviceOperators<T>> {
        self.stock.iter()
    }
    /// The part that depends on the points; `None` if there is no far field.
    pub(super) fn placed(&self) -> Option<&Placed<T>> {
        self.placed.as_ref().filter(|placed| placed.far)
    }
    /// [`placed`](Self::placed), mutable.
    pub(super) fn placed_mut(&mut self) -> Option<&mut Placed<T>> {
        self.placed.as_mut().filter(|placed| placed.far)
    }

    /// Makes the part that [depends on the points](Self::place): tables and workspaces. `sets` has the number of the
    /// operators of each level.
    pub(super) fn room(&self, base: &Base, edges: &Edges<T>, sets: &[u32]) -> Result<Placed<T>, Error> {
        let (recipe, shape, device) = (&self.recipe, self.shape, base.device());
        let (tree, sides, far) = (&base.tree, base.sides(), base.far());
        let tables = Tables {
            inner: device.upload(&rows(&recipe.lattice.inner()), "nodes")?,
            outer: device.upload(&rows(&recipe.lattice.outer()), "nodes")?,
            p2m: device.upload(&recipe.check_table(&sides, true), "levels")?,
            p2l: device.upload(&recipe.check_table(&sides, false), "levels")?,
            l2p: device.upload(&recipe.far_table(&sides, true), "levels")?,
            m2p: device.upload(&recipe.far_table(&sides, false), "levels")?,
        };
        let rank = self.stock().map(|o| o.upward[1].rows.max(o.downward[1].rows)).max().unwrap_or(0);
        let boxes = if far { tree.len() } else { 0 };
        let nets = self.stock().next().map_or(0, |o| o.units.len());
        let strengths = match &self.part {
            Some(part) => part.room(device, tree.sources.len())?,
            None => device.alloc(0, "strengths")?,
        };
        let workspace = Workspace::new(device, boxes, &shape, [rank, nets], edges, strengths)?;
        let affine = DeviceAffine::new(device, &recipe.affine(tree.side), boxes)?;
        Ok(Placed { tables, sets: sets.to_vec(), affine, workspace, far })
    }

    /// Replaces the part that depends on the points.
    pub(super) fn place(&mut self, placed: Placed<T>) {
        self.placed = Some(placed);
    }

    /// Bytes of device memory held.
    pub(super) fn held(&self) -> u64 {
        let operators: u64 = self.stock().map(DeviceOperators::bytes).sum();
        let placed = |p: &Placed<T>| p.affine.bytes() + p.workspace.bytes();
        operators + self.placed.as_ref().map_or(0, placed)
    }
}

/// What makes the operators of a far field on the device.
fn maker<'a>(device: &'a Device, recipe: &'a Recipe, programs: &'a Programs) -> Maker<'a> {
    let (kernel, lattice) = (&recipe.members.equivalent, recipe.lattice);
    Maker { device, functions: &programs.operators, kernel, lattice }
}

impl<T: DeviceScalar> Workspace<T> {
    /// Workspaces for `boxes` boxes. `rank` is the rank of the largest surface solve, `nets` the number of net
    /// strengths of a box.
    fn new(
        device: &Device,
        boxes: usize,
        shape: &Shape,
        [rank, nets]: [usize; 2],
        edges: &Edges<T>,
        strengths: Buffer<f64>,
    ) -> Result<Self, Error> {
        let parents = [Some(&edges.m2m), edges.after.as_ref()].into_iter().flatten().map(|up| up.parents.widest());
        let widest = parents.fold(edges.leaves.widest().max(edges.active.widest()), usize::max);
        let locals = if edges.active.len() > 0 { boxes } else { 0 };
        Ok(Workspace {
            strengths,
            multipoles: device.zeros(boxes * shape.density, "multipoles")?,
            nets: device.zeros(boxes * nets, "net strengths")?,
            locals: device.zeros(locals * shape.density, "locals")?,
            check: device.alloc(boxes * shape.check, "check values")?,
            middle: device.alloc(rank * widest, "check values")?,
        })
    }

    fn bytes(&self) -> u64 {
        let rows: u64 = [&self.multipoles, &self.locals, &self.check, &self.middle].iter().map(|b| b.bytes()).sum();
        rows + self.nets.bytes() + self.strengths.bytes()
    }
}

impl<T: DeviceScalar> Edges<T> {
    /// Arranges the edges and boxes of `base`, without M2L.
    pub fn new(base: &Base, lattice: Lattice) -> Result<Self, Error> {
        let (lists, levels) = (&base.lists, base.sides().len());
        let arranger = base.arranger()?;
        let by_child = 8 * levels;
        let [m2m, l2l] = arranger.edges(&lists.m2m, &lists.l2l, by_child)?;
        if let Some(level) = (0..levels).find(|&l| [&m2m, &l2l].iter().any(|e| e.beyond(l, lattice.octants()))) {
            let reason = format!("boxes of level {level} lie above each other, and the kernel is one of the plane");
            return Err(Error::Unsupported { operation: "a tree of several layers", reason });
        }
        let [leaves, parents, active] =
            arranger.items([[&lists.p2m; 3], [&lists.m2m; 3], [&lists.m2l, &lists.p2l, &lists.l2l]])?;
        let m2m = Upward { edges: m2m, parents };
        let after = base.ranks().map(|ranks| arranger.upward(&ranks.after, by_child)).transpose()?;
        Ok(Edges { m2m, after, m2l: VList::None, l2l, leaves, active })
    }

    /// Arranges the V list for `fields` far fields with these programs. `sets` has the number of the operators of each level,
    /// of `count` operators in all.
    pub fn arrange_m2l(
        &mut self,
        base: &Base,
        (programs, shape, lattice): (&Programs, &Shape, Lattice),
        sets: &[u32],
        [count, fields]: [usize; 2],
    ) -> Result<(), Error> {
        let m2l = &base.lists.m2l;
        if m2l.is_empty() {
            return Ok(());
        }
        let arranger = base.arranger()?;
        // Multipoles, locals, and check values twice.
        let workspaces = fields * base.tree.len() * 2 * (shape.density + shape.check) * size_of::<T>();
        let later = workspaces as u64 + base.of_an_evaluation();
        self.m2l = match Families::new(&arranger, &programs.m2l_fourier, m2l, (shape, lattice), later)? {
            Some(families) => VList::Fourier(Box::new(families)),
            None => {
                let table = arranger.table(m2l, &programs.products.m2l, sets, count)?;
                VList::Dense(Box::new(programs.products.far(table, shape.check)?))
            }
        };
        Ok(())
    }

    /// Whether boxes of a level have a multipole or a local.
    pub fn any(&self, level: usize) -> bool {
        let after = self.after.as_ref().map(|up| &up.parents);
        [&self.leaves, &self.m2m.parents, &self.active].into_iter().chain(after).any(|items| items.of(level).1 > 0)
    }

    pub fn bytes(&self) -> u64 {
        let items = [&self.leaves, &self.active];
        let boxes: u64 = items.iter().map(|i| i.boxes.bytes()).sum();
        let far = match &self.m2l {
            VList::None => 0,
            VList::Fourier(families) => families.bytes(),
            VList::Dense(far) => far.bytes(),
        };
        boxes + self.m2m.bytes() + self.after.as_ref().map_or(0, Upward::bytes) + self.l2l.bytes() + far
    }
}
