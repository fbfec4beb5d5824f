//! Everything that does not depend on strengths: programs, operators, tables, arranged edges, workspaces.

use super::DeviceScalar;
use super::arrange::{Arranged, Arranger, Far, Items, Kind};
use super::operators::{DeviceOperators, surface_rows};
use super::stages::{Run, Workspace};
use crate::device::{Buffer, Device, Functions};
use crate::lists::DeviceLists;
use crate::primitives::Primitives;
use crate::programs;
use crate::tree::DeviceTree;
use fmm_kernels::equivalent::operators::unit_parameters;
use fmm_kernels::equivalent::{OperatorSet, surface};
use fmm_traits::kernel::MAX_PARAMETERS;
use fmm_traits::{Error, Family, Kernel, Observer, OutputColumns, Outputs, Real, Stage, Visitor, evaluate};
use std::marker::PhantomData;
use std::sync::Arc;

/// A summation planned on the device: expansions in `T`, near field in `N`.
#[derive(Debug)]
pub struct Plan<T: DeviceScalar, N: Real> {
    pub(super) tree: DeviceTree,
    pub(super) lists: DeviceLists,
    pub(super) columns: Vec<OutputColumns>,
    pub(super) scale: f64,
    pub(super) programs: Programs,
    pub(super) tables: Tables,
    /// Operators, and which of them each level takes.
    pub(super) operators: Vec<DeviceOperators<T>>,
    pub(super) sets: Vec<u32>,
    pub(super) edges: Edges,
    pub(super) shape: Shape,
    pub(super) workspace: Workspace<T>,
    near: PhantomData<N>,
}

/// Compiled stages.
#[derive(Debug)]
pub(super) struct Programs {
    pub arrange: Functions,
    pub p2m: Functions,
    pub multiply: Functions,
    pub m2l: Functions,
    pub l2p: Functions,
    pub p2p: Functions,
    /// Threads of P2P.
    pub near_threads: u32,
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
pub(super) struct Edges {
    pub m2m: Arranged,
    pub m2l: Far,
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
    /// Plans order `p` for `family` on a tree and its lists.
    ///
    /// # Errors
    /// [`Error::Order`], [`Error::Edge`] for an edge between boxes that no operator joins, and those of
    /// the device.
    pub fn new<F: Family>(
        family: &F,
        outputs: Outputs,
        p: usize,
        tree: DeviceTree,
        lists: DeviceLists,
    ) -> Result<Self, Error> {
        family.validate()?;
        let (params, scale) = (family.parameters(), family.scale());
        family.visit(outputs, New::<F, T, N> { params, scale, p, tree, lists, of: PhantomData })?
    }

    /// Where each output lies among the values of a target.
    pub fn columns(&self) -> &[OutputColumns] {
        &self.columns
    }

    /// One evaluation: `strengths` N×strengths → values M×values, both in the caller's order; with the
    /// seconds of each stage on the device.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Cancelled`], and those of the device.
    pub fn apply(
        &mut self,
        strengths: &[f64],
        observer: Observer,
    ) -> Result<(Vec<f64>, [f64; Stage::ALL.len()]), Error> {
        let expected = self.tree.sources.len() * self.shape.strengths;
        if strengths.len() != expected {
            let why = "sources × strengths of the kernel".to_string();
            return Err(Error::Shape { array: "strengths", found: strengths.len(), expected, why });
        }
        let device = self.tree.device.clone();
        device.write(&mut self.workspace.given, 0, strengths, "strengths")?;
        let mut run = Run::new(self);
        evaluate(&mut run, &(), observer)?;
        let seconds = run.seconds()?;
        Ok((device.download(&self.workspace.out, "values")?, seconds))
    }
}

struct New<F, T, N> {
    params: Vec<f64>,
    scale: f64,
    p: usize,
    tree: DeviceTree,
    lists: DeviceLists,
    of: PhantomData<(F, T, N)>,
}

impl<F: Family, T: DeviceScalar, N: Real> Visitor for New<F, T, N> {
    type Output = Result<Plan<T, N>, Error>;
    fn visit<S: Kernel, E: Kernel>(self, columns: Vec<OutputColumns>) -> Self::Output {
        let New { params, scale, p, tree, lists, .. } = self;
        let device = tree.device.clone();
        let n = surface::len(p);
        let shape = Shape {
            points: n,
            density: n * F::Equivalent::STRENGTHS,
            check: n * F::Equivalent::VALUES,
            strengths: S::STRENGTHS,
            values: S::VALUES,
        };
        let levels = tree.level_start.len() - 1;
        let sides: Vec<f64> = (0..levels).map(|l| tree.side * (-(l as f64)).exp2()).collect();

        let (mut operators, mut sets) = (Vec::new(), Vec::new());
        if !(lists.p2m.is_empty() && lists.l2p.is_empty()) {
            let set = OperatorSet::<T>::build::<F>(&params, &sides, p, None)?;
            for l in 0..levels {
                if l == 0 || !Arc::ptr_eq(set.level(l), set.level(l - 1)) {
                    operators.push(DeviceOperators::new::<F>(&device, set.level(l), !lists.m2l.is_empty())?);
                }
                sets.push(operators.len() as u32 - 1);
            }
        }
        sets.resize(levels, 0);

        let boxes = device.upload(&tree.boxes.addresses(), "addresses of boxes")?;
        let (primitives, functions) = (Primitives::new(&device)?, device.load(&programs::arrange())?);
        let arranger = Arranger { tree: &tree, primitives, functions, boxes: &boxes };
        let p2p = arranger.items([&lists.p2p; 3])?;
        let near = programs::near_shape(tree.targets.len() as f64 / p2p.len().max(1) as f64, S::VALUES);
        let programs = Programs {
            arrange: arranger.functions.clone(),
            p2m: device.load(&programs::p2m_program::<F::Check, T>(n))?,
            multiply: device.load(&programs::multiply_program::<T>())?,
            m2l: device.load(&programs::m2l_program::<T>())?,
            l2p: device.load(&programs::l2p_program::<E, T>())?,
            p2p: device.load(&programs::p2p_program::<S, N>(near))?,
            near_threads: near.0 as u32,
        };
        let by_child = 8 * levels;
        let edges = Edges {
            m2m: arranger.edges(&lists.m2m, Kind::M2m, by_child)?,
            m2l: arranger.far(&lists.m2l, &programs.m2l, &sets, operators.len())?,
            l2l: arranger.edges(&lists.l2l, Kind::L2l, by_child)?,
            leaves: arranger.items([&lists.p2m; 3])?,
            parents: arranger.items([&lists.m2m; 3])?,
            active: arranger.items([&lists.m2l, &lists.p2l, &lists.l2l])?,
            l2p: arranger.items([&lists.l2p; 3])?,
            m2p: arranger.items([&lists.m2p; 3])?,
            p2p,
        };

        // A row a level: side, parameters, factors of strengths, factors of values.
        let table = |unit: bool, strengths: &dyn Fn(f64) -> Vec<f64>, values: &dyn Fn(f64) -> Vec<f64>| {
            let row = |&side: &f64| {
                let side = if unit { side } else { 1.0 };
                let mut head = if unit { unit_parameters::<F>(&params, side) } else { params.clone() };
                head.resize(MAX_PARAMETERS, 0.0);
                [vec![side], head, strengths(side), values(side)].concat()
            };
            device.upload(&sides.iter().flat_map(row).collect::<Vec<f64>>(), "levels")
        };
        let powers = |count: usize, degree: fn(usize) -> i32| {
            move |side: f64| -> Vec<f64> { (0..count).map(|i| side.powi(degree(i))).collect() }
        };
        let none = |_: f64| Vec::new();
        let framed = N::NAME == "f32";
        let tables = Tables {
            corner: device.upload(&tree.corner, "corner")?,
            inner: device.upload(&surface_rows(p, surface::INNER), "surface")?,
            outer: device.upload(&surface_rows(p, surface::OUTER), "surface")?,
            check: table(true, &powers(F::Check::STRENGTHS, F::Check::strength_degree), &none)?,
            far: table(true, &none, &powers(E::VALUES, E::value_degree))?,
            near: table(framed, &powers(S::STRENGTHS, S::strength_degree), &powers(S::VALUES, S::value_degree))?,
            boxes,
        };
        let workspace = Workspace::new(&tree, &shape, &operators, &edges)?;
        let near = PhantomData;
        Ok(Plan { tree, lists, columns, scale, programs, tables, operators, sets, edges, shape, workspace, near })
    }
}

impl Far {
    /// Blocks of at most `edge` boxes of a set of operators, each within an octant.
    pub fn blocks(&self, set: usize, edge: usize) -> usize {
        self.starts[8 * set..=8 * set + 8].windows(2).map(|w| ((w[1] - w[0]) as usize).div_ceil(edge)).sum()
    }
}

impl Arranged {
    /// Edges of operator `k`: first, and how many.
    pub fn of(&self, k: usize) -> (usize, usize) {
        let (start, end) = (self.starts[k] as usize, self.starts[k + 1] as usize);
        (start, end - start)
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

/// Device of a plan.
impl<T: DeviceScalar, N: Real> Plan<T, N> {
    pub(super) fn device(&self) -> &Device {
        &self.tree.device
    }
}
