//! The stages on the device, each enqueued whole: `kernels/{p2m,multiply,l2p,p2p,arrange}.cu`.

use super::DeviceScalar;
use super::operators::{Dense, DeviceOperators};
use super::plan::{Edges, Plan, Shape};
use crate::device::{Arg, Buffer, Functions, blocks};
use crate::lists::DeviceEdges;
use crate::programs::{LEAF_THREADS, threads_for};
use crate::tree::{DevicePoints, DeviceTree};
use cudarc::driver::CudaEvent;
use fmm_traits::{Error, Real, Stage, Stages};

/// Threads of `multiply.cu` and `m2l.cu`, and rows and vectors of one of their blocks.
const MULTIPLY_BLOCK: u32 = 256;
const M2L_BLOCK: u32 = 128;
const MULTIPLY_EDGE: usize = 64;
/// Threads of the kernels with one number each.
const BLOCK: u32 = 256;

/// What changes with strengths.
#[derive(Debug)]
pub(super) struct Workspace<T> {
    /// Caller's order.
    pub given: Buffer<f64>,
    pub out: Buffer<f64>,
    /// Tree order.
    strengths: Buffer<f64>,
    values: Buffer<f64>,
    /// A row a box.
    multipoles: Buffer<T>,
    locals: Buffer<T>,
    /// Check values: of multipoles on the way up, of locals on the way down.
    check: Buffer<T>,
    /// Between the factors of a solve.
    middle: Buffer<T>,
}

impl<T: DeviceScalar> Workspace<T> {
    pub fn new(
        tree: &DeviceTree,
        shape: &Shape,
        operators: &[DeviceOperators<T>],
        edges: &Edges,
    ) -> Result<Self, Error> {
        let (device, n, m) = (&tree.device, tree.sources.len(), tree.targets.len());
        let boxes = if operators.is_empty() { 0 } else { tree.len() };
        let rank = operators.iter().map(|o| o.upward[1].rows.max(o.downward[1].rows)).max().unwrap_or(0);
        let widest = edges.leaves.widest().max(edges.parents.widest()).max(edges.active.widest());
        Ok(Workspace {
            given: device.alloc(n * shape.strengths, "strengths")?,
            out: device.zeros(m * shape.values, "values")?,
            strengths: device.alloc(n * shape.strengths, "strengths")?,
            values: device.alloc(m * shape.values, "values")?,
            multipoles: device.zeros(boxes * shape.density, "multipoles")?,
            locals: device.zeros(boxes * shape.density, "locals")?,
            check: device.alloc(boxes * shape.check, "check values")?,
            middle: device.alloc(rank * widest, "check values")?,
        })
    }
}

/// One evaluation.
pub(super) struct Run<'a, T: DeviceScalar, N: Real> {
    plan: &'a mut Plan<T, N>,
    marks: Vec<(Stage, CudaEvent, CudaEvent)>,
}

impl<'a, T: DeviceScalar, N: Real> Run<'a, T, N> {
    pub fn new(plan: &'a mut Plan<T, N>) -> Self {
        Run { plan, marks: Vec::new() }
    }

    /// Seconds of each stage on the device; waits for them.
    pub fn seconds(&self) -> Result<[f64; Stage::ALL.len()], Error> {
        let mut seconds = [0.0; Stage::ALL.len()];
        for (stage, from, to) in &self.marks {
            seconds[*stage as usize] += self.plan.device().seconds(from, to)?;
        }
        Ok(seconds)
    }

    /// Enqueues a stage between two marks.
    fn timed(&mut self, stage: Stage, work: impl FnOnce(&mut Plan<T, N>) -> Result<(), Error>) -> Result<(), Error> {
        let from = self.plan.device().mark()?;
        work(self.plan)?;
        self.marks.push((stage, from, self.plan.device().mark()?));
        Ok(())
    }
}

/// Vectors of a product: the array, the length of a row, and which rows.
type Vectors<'a, T> = (&'a Buffer<T>, usize, Arg);
/// All rows, in order.
const ALL: u64 = 0;

impl<T: DeviceScalar, N: Real> Plan<T, N> {
    /// Enqueues `to` = `factor`·matrix·`from` for `count` vectors, added or not. `matrix`: address, rows,
    /// columns.
    ///
    /// # Safety
    /// The matrix and the rows that are picked exist; with `add`, those of `to` are distinct.
    unsafe fn multiply(
        &self,
        (matrix, rows, columns): (Arg, usize, usize),
        from: Vectors<T>,
        to: Vectors<T>,
        count: usize,
        factor: f64,
        add: bool,
    ) -> Result<(), Error> {
        let args = [
            matrix,
            (rows as u32).into(),
            (columns as u32).into(),
            from.0.into(),
            (from.1 as u32).into(),
            from.2,
            to.0.into(),
            (to.1 as u32).into(),
            to.2,
            (count as u32).into(),
            factor.into(),
            u32::from(add).into(),
        ];
        let grid = (blocks(count, MULTIPLY_EDGE)?, blocks(rows, MULTIPLY_EDGE)?);
        // SAFETY: arguments as in multiply.cu; the rest is the promise of the caller.
        unsafe { self.device().launch(&self.programs.multiply, "multiply", grid, MULTIPLY_BLOCK, &args) }
    }

    /// Enqueues the solve of the check values of `count` boxes, from item `first` on, for densities.
    ///
    /// # Safety
    /// The items exist, and `middle` holds a row for each.
    unsafe fn solve(
        &self,
        factors: &[Dense<T>; 2],
        items: &Buffer<u32>,
        (first, count): (usize, usize),
        densities: &Buffer<T>,
    ) -> Result<(), Error> {
        let [second, first_factor] = factors;
        let (w, shape) = (&self.workspace, &self.shape);
        let matrix = |d: &Dense<T>| (Arg::from(&d.data), d.rows, d.cols);
        let (rank, rows) = (first_factor.rows, items.at(first));
        let middle = (&w.middle, rank, ALL.into());
        // SAFETY: that of the caller.
        unsafe {
            self.multiply(matrix(first_factor), (&w.check, shape.check, rows), middle, count, 1.0, false)?;
            self.multiply(matrix(second), middle, (densities, shape.density, rows), count, 1.0, false)
        }
    }

    /// Enqueues P2M (to the boxes listed) or P2L (to all).
    fn to_surface(&self, edges: &DeviceEdges, items: Option<&Buffer<u32>>, surface: &Buffer<f64>) -> Result<(), Error> {
        let (tables, w) = (&self.tables, &self.workspace);
        let args = [
            (&tables.boxes).into(),
            (&tables.corner).into(),
            (&tables.check).into(),
            items.map_or(ALL.into(), Arg::from),
            (&edges.starts).into(),
            (&edges.sources).into(),
            surface.into(),
            (self.shape.points as u32).into(),
            (&self.tree.sources.xyz).into(),
            (self.tree.sources.len() as u64).into(),
            (&w.strengths).into(),
            (&w.check).into(),
        ];
        let count = items.map_or(self.tree.len(), Buffer::len);
        let block = threads_for(self.shape.points) as u32;
        // SAFETY: arguments as in p2m.cu; check has a row for each box.
        unsafe { self.device().launch(&self.programs.p2m, "to_surface", (blocks(count, 1)?, 1), block, &args) }
    }

    /// Enqueues L2P or M2P: densities on a surface to the targets of leaves.
    fn at_targets(
        &self,
        edges: &DeviceEdges,
        items: &Buffer<u32>,
        surface: &Buffer<f64>,
        densities: &Buffer<T>,
    ) -> Result<(), Error> {
        let tables = &self.tables;
        let args = [
            (&tables.boxes).into(),
            (&tables.corner).into(),
            (&tables.far).into(),
            items.into(),
            (&edges.starts).into(),
            (&edges.sources).into(),
            surface.into(),
            (self.shape.points as u32).into(),
            densities.into(),
            (&self.tree.targets.xyz).into(),
            (self.tree.targets.len() as u64).into(),
            (&self.workspace.values).into(),
        ];
        let grid = (blocks(items.len(), 1)?, 1);
        // SAFETY: arguments as in l2p.cu; densities have a row for each box.
        unsafe { self.device().launch(&self.programs.l2p, "from_surface", grid, LEAF_THREADS as u32, &args) }
    }

    /// Enqueues a permutation of rows between the caller's order and that of `points`.
    fn permute(
        &self,
        entry: &'static str,
        functions: &Functions,
        from: &Buffer<f64>,
        points: &DevicePoints,
        width: usize,
        scale: Option<f64>,
        to: &Buffer<f64>,
    ) -> Result<(), Error> {
        let mut args = vec![from.into(), (&points.order).into(), (points.len() as u64).into(), (width as u32).into()];
        args.extend(scale.map(Arg::from));
        args.push(to.into());
        let grid = (blocks(points.len() * width, BLOCK as usize)?, 1);
        // SAFETY: arguments as in arrange.cu; both arrays have a row for each point.
        unsafe { self.device().launch(functions, entry, grid, BLOCK, &args) }
    }
}

impl<T: DeviceScalar, N: Real> Stages for Run<'_, T, N> {
    /// The plan holds them.
    type Lists = ();

    fn levels(&self) -> usize {
        self.plan.tree.level_start.len() - 1
    }

    fn scatter(&mut self) -> Result<(), Error> {
        self.timed(Stage::Scatter, |p| {
            let device = p.device().clone();
            device.clear(&mut p.workspace.values)?;
            device.clear(&mut p.workspace.check)?;
            let (w, functions, width) = (&p.workspace, &p.programs.arrange, p.shape.strengths);
            p.permute("scatter", functions, &w.given, &p.tree.sources, width, None, &w.strengths)
        })
    }

    fn p2m(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::P2m, |p| {
            if p.operators.is_empty() {
                return Ok(());
            }
            let leaves = &p.edges.leaves;
            p.to_surface(&p.lists.p2m, Some(&leaves.boxes), &p.tables.outer)?;
            for (level, &set) in p.sets.iter().enumerate() {
                let upward = &p.operators[set as usize].upward;
                // SAFETY: the items of a level exist, and `middle` holds a row for each.
                unsafe { p.solve(upward, &leaves.boxes, leaves.of(level), &p.workspace.multipoles)? };
            }
            Ok(())
        })
    }

    fn m2m(&mut self, _: &(), level: usize) -> Result<(), Error> {
        self.timed(Stage::M2m, |p| {
            let (edges, parents, w) = (&p.edges.m2m, &p.edges.parents, &p.workspace);
            if parents.of(level).1 == 0 || p.operators.is_empty() {
                return Ok(());
            }
            let operators = &p.operators[p.sets[level] as usize];
            for (octant, matrix) in operators.m2m.iter().enumerate() {
                let (first, count) = edges.of(8 * (level + 1) + octant);
                let from = (&w.multipoles, p.shape.density, edges.from.at(first));
                let to = (&w.check, p.shape.check, edges.to.at(first));
                // SAFETY: a box has one child in an octant; the edges exist.
                unsafe { p.multiply((Arg::from(&matrix.data), matrix.rows, matrix.cols), from, to, count, 1.0, true)? };
            }
            // SAFETY: the items of a level exist, and `middle` holds a row for each.
            unsafe { p.solve(&operators.upward, &parents.boxes, parents.of(level), &w.multipoles) }
        })
    }

    fn m2l(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::M2l, |p| {
            let device = p.device().clone();
            device.clear(&mut p.workspace.check)?;
            let (far, w, shape) = (&p.edges.m2l, &p.workspace, p.shape);
            for (set, operators) in p.operators.iter().enumerate() {
                let args = [
                    (&operators.m2l).into(),
                    (shape.check as u32).into(),
                    (shape.density as u32).into(),
                    (&w.multipoles).into(),
                    (&far.table).into(),
                    (far.boxes.len() as u32).into(),
                    (&far.boxes).into(),
                    far.device_starts.at(8 * set),
                    (&w.check).into(),
                ];
                let grid = (blocks(far.blocks(set, MULTIPLY_EDGE), 1)?, blocks(shape.check, MULTIPLY_EDGE)?);
                // SAFETY: arguments as in m2l.cu; the boxes are distinct, and so are the rows they receive. A
                // surface has an even number of points.
                unsafe { device.launch(&p.programs.m2l, "m2l", grid, M2L_BLOCK, &args)? };
            }
            Ok(())
        })
    }

    fn p2l(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::P2l, |p| {
            if p.lists.p2l.is_empty() || p.operators.is_empty() {
                return Ok(());
            }
            p.to_surface(&p.lists.p2l, None, &p.tables.inner)
        })
    }

    fn l2l(&mut self, _: &(), level: usize) -> Result<(), Error> {
        self.timed(Stage::L2l, |p| {
            let (edges, active, w) = (&p.edges.l2l, &p.edges.active, &p.workspace);
            if active.of(level).1 == 0 || p.operators.is_empty() {
                return Ok(());
            }
            if level > 0 {
                // The operator from the parent belongs to the parent's unit box.
                let operators = &p.operators[p.sets[level - 1] as usize];
                for (octant, matrix) in operators.l2l.iter().enumerate() {
                    let (first, count) = edges.of(8 * level + octant);
                    let from = (&w.locals, p.shape.density, edges.from.at(first));
                    let to = (&w.check, p.shape.check, edges.to.at(first));
                    let matrix = (Arg::from(&matrix.data), matrix.rows, matrix.cols);
                    // SAFETY: a box has one parent; the edges exist.
                    unsafe { p.multiply(matrix, from, to, count, operators.l2l_factor, true)? };
                }
            }
            let downward = &p.operators[p.sets[level] as usize].downward;
            // SAFETY: the items of a level exist, and `middle` holds a row for each.
            unsafe { p.solve(downward, &active.boxes, active.of(level), &w.locals) }
        })
    }

    fn l2p(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::L2p, |p| p.at_targets(&p.lists.l2p, &p.edges.l2p.boxes, &p.tables.outer, &p.workspace.locals))
    }

    fn m2p(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::M2p, |p| {
            p.at_targets(&p.lists.m2p, &p.edges.m2p.boxes, &p.tables.inner, &p.workspace.multipoles)
        })
    }

    fn p2p(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::P2p, |p| {
            let (tables, tree, w) = (&p.tables, &p.tree, &p.workspace);
            let same = std::sync::Arc::ptr_eq(&tree.sources, &tree.targets);
            let args = [
                (&tables.boxes).into(),
                (&tables.corner).into(),
                (&tables.near).into(),
                (&p.edges.p2p.boxes).into(),
                (&p.lists.p2p.starts).into(),
                (&p.lists.p2p.sources).into(),
                u32::from(same).into(),
                (&tree.sources.xyz).into(),
                (tree.sources.len() as u64).into(),
                (&w.strengths).into(),
                (&tree.targets.xyz).into(),
                (tree.targets.len() as u64).into(),
                (&w.values).into(),
            ];
            let grid = (blocks(p.edges.p2p.len(), 1)?, 1);
            // SAFETY: arguments as in p2p.cu; values have a row for each target.
            unsafe { p.device().launch(&p.programs.p2p, "p2p", grid, p.programs.near_threads, &args) }
        })
    }

    fn gather(&mut self) -> Result<(), Error> {
        self.timed(Stage::Gather, |p| {
            let (w, functions, width) = (&p.workspace, &p.programs.arrange, p.shape.values);
            p.permute("gather", functions, &w.values, &p.tree.targets, width, Some(p.scale), &w.out)
        })
    }
}
