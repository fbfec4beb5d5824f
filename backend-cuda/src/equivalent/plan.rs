//! The data of equivalent densities on the device: programs, operators, and the tables and workspaces for the points.

use super::DeviceScalar;
use super::affine::DeviceAffine;
use super::fields::Part;
use super::fourier::{self, Families};
use super::operators::{DeviceOperators, m2l_matrices, rows};
use super::recipe::Recipe;
use crate::arrange::{Arranged, Items, Upward};
use crate::base::Base;
use crate::device::{Buffer, Device, Functions};
use crate::levels::Units;
use crate::plan::Ahead;
use crate::products::{Across, Products};
use crate::programs;
use fmm_kernels::equivalent::Lattice;
use fmm_traits::{Error, Kernels};
use std::path::PathBuf;

/// A far field by equivalent densities, with expansions in `T`.
#[derive(Debug)]
pub(super) struct Equivalent<T: DeviceScalar> {
    recipe: Recipe,
    /// What makes the strengths of its sources; `None` for the strengths of the sum.
    pub(super) part: Option<Part>,
    pub(super) shape: Shape,
    pub(super) programs: Programs,
    /// All operators made so far. The key is the kernel parameters on the unit box.
    stock: Vec<(Vec<f64>, DeviceOperators<T>)>,
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
    pub edges: Edges<T>,
    pub affine: DeviceAffine<T>,
    /// Blocks of L2P and M2P that share a leaf.
    pub parts: u32,
    pub workspace: Workspace<T>,
    /// Whether there is a far field.
    far: bool,
}

/// The compiled programs of the stages.
#[derive(Debug)]
pub(super) struct Programs {
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

impl<T: DeviceScalar> Equivalent<T> {
    /// Far field `k` of `kernels`, without points.
    ///
    /// # Errors
    /// [`Error::Order`], and errors of the device.
    pub fn new(
        device: &Device,
        kernels: &Kernels,
        k: usize,
        (lattice, cache): (Lattice, Option<PathBuf>),
        ahead: Option<Ahead>,
    ) -> Result<Self, Error> {
        lattice.validate()?;
        let n = lattice.len();
        let Kernels { far, members, nodes, params, .. } = kernels;
        let units = Units { params: nodes.parameters(params, k), kernel: members.equivalent.clone() };
        let [multiply, m2l] = Products::programs::<T>();
        let recipe = Recipe::new::<T>(kernels, units, lattice, cache);
        let (loaded, first) = std::thread::scope(|scope| {
            let loaded = scope.spawn(|| {
                device.load_together([
                    programs::p2m_program::<T>(&members.check, n),
                    programs::affine_program::<T>(members.check.values),
                    programs::m2l_fourier_program::<T>(lattice.dim),
                    programs::dft_program::<T>(lattice),
                    programs::l2p_program::<T>(far),
                    multiply,
                    m2l,
                ])
            });
            let first = ahead.map(|ahead| recipe.ahead(device, ahead)).transpose();
            (loaded.join().unwrap_or_else(|e| std::panic::resume_unwind(e)), first)
        });
        let [p2m, affine, m2l_fourier, dft, l2p, multiply, m2l] = loaded?;
        Ok(Equivalent {
            shape: Shape { points: n, density: n * members.equivalent.strengths, check: n * members.equivalent.values },
            programs: Programs { p2m, products: Products::of(device, [multiply, m2l]), affine, m2l_fourier, dft, l2p },
            part: Part::new(device, kernels, k)?,
            recipe,
            stock: first?.into_iter().collect(),
            no_spectra: device.alloc(0, "spectra of M2L")?,
            placed: None,
        })
    }

    /// The operators of a level.
    pub(super) fn operators(&self, placed: &Placed<T>, level: usize) -> &DeviceOperators<T> {
        &self.stock[placed.sets[level] as usize].1
    }
    /// All operators, by number.
    pub(super) fn stock(&self) -> impl Iterator<Item = &DeviceOperators<T>> {
        self.stock.iter().map(|(_, o)| o)
    }
    /// The part that depends on the points; `None` if there is no far field.
    pub(super) fn placed(&self) -> Option<&Placed<T>> {
        self.placed.as_ref().filter(|placed| placed.far)
    }
    /// [`placed`](Self::placed), mutable.
    pub(super) fn placed_mut(&mut self) -> Option<&mut Placed<T>> {
        self.placed.as_mut().filter(|placed| placed.far)
    }

    /// Makes the part that [depends on the points](Self::place): arranges edges and allocates workspaces. Missing
    /// operators are made and added to the stock.
    pub(super) fn take(&mut self, base: &Base) -> Result<Placed<T>, Error> {
        let (recipe, shape, programs, stock) = (&self.recipe, self.shape, &self.programs, &mut self.stock);
        let (tree, lists, device, sides) = (&base.tree, &base.lists, base.device(), base.sides());
        let levels = sides.len();
        let mut sets = vec![0; levels];
        let far = base.far();
        for (set, &side) in sets.iter_mut().zip(&sides).filter(|_| far) {
            let key = recipe.parameters(side);
            let same = |known: &[f64]| known.iter().zip(&key).all(|(a, b)| a.to_bits() == b.to_bits());
            *set = match stock.iter().position(|(known, _)| same(known)) {
                Some(known) => known,
                None => {
                    stock.push((key, recipe.operators(device, side)?));
                    stock.len() - 1
                }
            } as u32;
        }
        let arranger = base.arranger()?;
        let by_child = 8 * levels;
        let [m2m, l2l] = arranger.edges(&lists.m2m, &lists.l2l, by_child)?;
        if let Some(level) = (0..levels).find(|&l| [&m2m, &l2l].iter().any(|e| e.beyond(l, recipe.lattice.octants()))) {
            let reason = format!("boxes of level {level} lie above each other, and the kernel is one of the plane");
            return Err(Error::Unsupported { operation: "a tree of several layers", reason });
        }
        let m2l = if lists.m2l.is_empty() {
            VList::None
        } else {
            let families = Families::new(&arranger, &programs.m2l_fourier, &lists.m2l, &shape, recipe.lattice)?;
            match families {
                Some(families) => VList::Fourier(Box::new(families)),
                None => {
                    let table = arranger.table(&lists.m2l, &programs.products.m2l, &sets, stock.len())?;
                    VList::Dense(Box::new(programs.products.far(table, shape.check)?))
                }
            }
        };
        let kernel = &recipe.members.equivalent;
        let used = if matches!(m2l, VList::None) { &[] } else { &sets[1..] };
        for &set in used {
            let (params, o) = &mut stock[set as usize];
            match m2l {
                VList::Fourier(_) if o.fourier.is_none() => {
                    o.fourier = Some(fourier::operators(device, kernel, params, &o.host)?)
                }
                VList::Dense(_) if o.dense.is_none() => o.dense = Some(m2l_matrices(device, kernel, params, &o.host)?),
                _ => {}
            }
        }
        let [leaves, parents, active] =
            arranger.items([[&lists.p2m; 3], [&lists.m2m; 3], [&lists.m2l, &lists.p2l, &lists.l2l]])?;
        let m2m = Upward { edges: m2m, parents };
        let after = base.ranks().map(|ranks| arranger.upward(&ranks.after, by_child)).transpose()?;
        let edges = Edges { m2m, after, m2l, l2l, leaves, active };
        let tables = Tables {
            inner: device.upload(&rows(&recipe.lattice.inner()), "nodes")?,
            outer: device.upload(&rows(&recipe.lattice.outer()), "nodes")?,
            p2m: device.upload(&recipe.check_table(&sides, true), "levels")?,
            p2l: device.upload(&recipe.check_table(&sides, false), "levels")?,
            l2p: device.upload(&recipe.far_table(&sides, true), "levels")?,
            m2p: device.upload(&recipe.far_table(&sides, false), "levels")?,
        };
        let rank = stock.iter().map(|(_, o)| o.upward[1].rows.max(o.downward[1].rows)).max().unwrap_or(0);
        let boxes = if far { tree.len() } else { 0 };
        let nets = stock.first().map_or(0, |(_, o)| o.units.len());
        let strengths = match &self.part {
            Some(part) => part.room(device, tree.sources.len())?,
            None => device.alloc(0, "strengths")?,
        };
        let workspace = Workspace::new(device, boxes, &shape, [rank, nets], &edges, strengths)?;
        let affine = DeviceAffine::new(device, &recipe.affine(tree.side), boxes)?;
        let parts = base.parts(recipe.group);
        Ok(Placed { tables, sets, edges, affine, parts, workspace, far })
    }

    /// Replaces the part that depends on the points.
    pub(super) fn place(&mut self, placed: Placed<T>) {
        self.placed = Some(placed);
    }

    /// Bytes of device memory held.
    pub(super) fn held(&self) -> u64 {
        let operators: u64 = self.stock().map(DeviceOperators::bytes).sum();
        let placed = |p: &Placed<T>| p.edges.bytes() + p.affine.bytes() + p.workspace.bytes();
        operators + self.placed.as_ref().map_or(0, placed)
    }
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
    fn bytes(&self) -> u64 {
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
