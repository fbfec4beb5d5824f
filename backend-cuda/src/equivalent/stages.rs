//! The stages on the device, each enqueued whole: `kernels/{p2m,multiply,l2p,p2p,arrange}.cu`.

use super::DeviceScalar;
use super::arrange::Table;
use super::fourier::Families;
use super::operators::Dense;
use super::plan::{Edges, Ends, Far, Plan, Shape};
use crate::device::{Arg, Buffer, Device, blocks};
use crate::lists::DeviceEdges;
use crate::programs::{LEAF_THREADS, surface_shape};
use crate::tree::{DeviceTree, WALKERS};
use cudarc::driver::CudaEvent;
use fmm_traits::{Error, Real, Stage, Stages};

/// Threads of `multiply.cu` and `m2l.cu`, and rows and vectors of one of their blocks.
const MULTIPLY_BLOCK: u32 = 128;
const MULTIPLY_EDGE: usize = 64;
/// Threads of the kernels with one number each.
const BLOCK: u32 = 256;
/// `LEVEL_HEAD` of `level.cuh`.
const LEVEL_HEAD: usize = 5;
/// Threads of `add_net` in `p2m.cu`.
const NET_THREADS: u32 = 128;

/// What changes with strengths.
#[derive(Debug)]
pub(super) struct Workspace<T> {
    /// Largest strength, as bits.
    largest: Buffer<u64>,
    /// Caller's order, made when somebody comes with arrays on the host: strengths, values.
    ends: Option<(Buffer<f64>, Buffer<f64>)>,
    /// Tree order.
    strengths: Buffer<f64>,
    pub values: Buffer<f64>,
    /// A row a box.
    multipoles: Buffer<T>,
    locals: Buffer<T>,
    /// Check values: of multipoles on the way up, of locals on the way down.
    pub check: Buffer<T>,
    /// Between the factors of a solve.
    middle: Buffer<T>,
}

impl<T: DeviceScalar> Workspace<T> {
    /// `rank`: of the largest surface solve; `far`: whether there is a far field.
    pub fn new(tree: &DeviceTree, shape: &Shape, rank: usize, far: bool, edges: &Edges<T>) -> Result<Self, Error> {
        let (device, n, m) = (&tree.device, tree.sources.len(), tree.targets.len());
        let boxes = if far { tree.len() } else { 0 };
        let widest = edges.leaves.widest().max(edges.parents.widest()).max(edges.active.widest());
        Ok(Workspace {
            largest: device.zeros(1, "largest strength")?,
            ends: None,
            strengths: device.alloc(n * shape.strengths, "strengths")?,
            values: device.alloc(m * shape.values, "values")?,
            multipoles: device.zeros(boxes * shape.density, "multipoles")?,
            locals: device.zeros(boxes * shape.density, "locals")?,
            check: device.alloc(boxes * shape.check, "check values")?,
            middle: device.alloc(rank * widest, "check values")?,
        })
    }
}

impl<T> Workspace<T> {
    /// Strengths and values in the caller's order.
    pub fn ends(&mut self, device: &Device) -> Result<(&mut Buffer<f64>, &Buffer<f64>), Error> {
        if self.ends.is_none() {
            let given = device.alloc(self.strengths.len(), "strengths")?;
            self.ends = Some((given, device.alloc(self.values.len(), "values")?));
        }
        let (given, values) = self.ends.as_mut().expect("they are there");
        Ok((given, values))
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let ends = self.ends.iter().map(|(given, values)| given.bytes() + values.bytes());
        let ends = ends.sum::<u64>() + self.strengths.bytes() + self.values.bytes();
        ends + [&self.multipoles, &self.locals, &self.check, &self.middle].iter().map(|b| b.bytes()).sum::<u64>()
    }
}

/// Whether anything is in f32, and strengths are divided by the largest.
fn single<T: Real, N: Real>() -> bool {
    T::NAME == "f32" || N::NAME == "f32"
}

/// One evaluation.
pub(super) struct Run<'a, T: DeviceScalar, N: Real> {
    plan: &'a mut Plan<T, N>,
    ends: Ends,
    marks: Vec<(Stage, CudaEvent, CudaEvent)>,
}

impl<'a, T: DeviceScalar, N: Real> Run<'a, T, N> {
    pub fn new(plan: &'a mut Plan<T, N>, ends: Ends) -> Self {
        Run { plan, ends, marks: Vec::new() }
    }

    /// Seconds of each stage on the device; waits for them. Where P2P runs beside the far field their sum is more than
    /// what passes.
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
/// Which vectors a product takes.
#[derive(Clone, Copy)]
enum Which {
    /// This many.
    All(usize),
    /// Those of groups from these starts on, in tiles.
    Groups { starts: Arg, tiles: usize },
}

impl<T: DeviceScalar, N: Real> Plan<T, N> {
    /// Enqueues `to` = `factor`·matrix·`from`, added or not: for `count` vectors, or for those of groups, a matrix each.
    ///
    /// # Safety
    /// The matrices and the rows that are picked exist; those of `to` are distinct.
    unsafe fn multiply(
        &self,
        matrix: &Dense<T>,
        from: Vectors<T>,
        to: Vectors<T>,
        which: Which,
        factor: f64,
        add: bool,
    ) -> Result<(), Error> {
        let (starts, count, tiles) = match which {
            Which::All(count) => (ALL.into(), count, count.div_ceil(MULTIPLY_EDGE)),
            Which::Groups { starts, tiles } => (starts, 0, tiles),
        };
        let args = [
            (&matrix.data).into(),
            (matrix.rows as u32).into(),
            (matrix.cols as u32).into(),
            from.0.into(),
            (from.1 as u32).into(),
            from.2,
            to.0.into(),
            (to.1 as u32).into(),
            to.2,
            starts,
            (count as u32).into(),
            factor.into(),
            u32::from(add).into(),
        ];
        let grid = (blocks(tiles, 1)?, blocks(matrix.rows, MULTIPLY_EDGE)?);
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
        let (w, shape) = (&self.placed().workspace, &self.shape);
        let (rank, rows) = (first_factor.rows, items.at(first));
        let middle = (&w.middle, rank, ALL.into());
        // SAFETY: that of the caller.
        unsafe {
            let all = Which::All(count);
            self.multiply(first_factor, (&w.check, shape.check, rows), middle, all, 1.0, false)?;
            self.multiply(second, middle, (densities, shape.density, rows), all, 1.0, false)
        }
    }

    /// Enqueues the upward solve of `count` boxes of `level`, from item `first` on, with their net strengths.
    ///
    /// # Safety
    /// As [`solve`](Self::solve).
    unsafe fn solve_upward(
        &self,
        level: usize,
        items: &Buffer<u32>,
        (first, count): (usize, usize),
    ) -> Result<(), Error> {
        let (w, tables, operators) = (&self.placed().workspace, &self.placed().tables, self.operators(level));
        // SAFETY: that of the caller.
        unsafe { self.solve(&operators.upward, items, (first, count), &w.multipoles)? };
        for (strength, unit) in operators.units.iter().filter(|_| count > 0) {
            let args = [
                (&tables.boxes).into(),
                (&tables.check).into(),
                items.at(first),
                (&w.strengths).into(),
                (*strength as u32).into(),
                unit.into(),
                (self.shape.density as u32).into(),
                (&w.multipoles).into(),
            ];
            // SAFETY: arguments as in p2m.cu; multipoles have a row for each box.
            unsafe { self.device().launch(&self.programs.p2m, "add_net", (blocks(count, 1)?, 1), NET_THREADS, &args)? };
        }
        Ok(())
    }

    fn m2l_fourier(&self, device: &Device, families: &Families<T>) -> Result<(), Error> {
        let (w, programs) = (&self.placed().workspace, [&self.programs.dft, &self.programs.m2l_fourier]);
        let missing = device.alloc(0, "spectra of M2L")?;
        // Every level with a V list has them.
        let operators = |level: usize| self.operators(level).fourier.as_ref().unwrap_or(&missing);
        // SAFETY: multipoles and check values have a row for each box.
        unsafe { families.enqueue(device, programs, &self.shape, &operators, &w.multipoles, &w.check) }
    }

    fn m2l_dense(&self, device: &Device, far: &Table) -> Result<(), Error> {
        let (w, shape) = (&self.placed().workspace, self.shape);
        for (set, operators) in self.stock().enumerate() {
            let Some(matrices) = &operators.dense else { continue };
            let args = [
                matrices.into(),
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
            unsafe { device.launch(&self.programs.m2l, "m2l", grid, MULTIPLY_BLOCK, &args)? };
        }
        Ok(())
    }

    /// Enqueues P2M (to the boxes listed) or P2L (to all).
    fn to_surface(&self, edges: &DeviceEdges, items: Option<&Buffer<u32>>, surface: &Buffer<f64>) -> Result<(), Error> {
        let (tables, w) = (&self.placed().tables, &self.placed().workspace);
        let args = [
            (&tables.boxes).into(),
            (&tables.corner).into(),
            (&tables.check).into(),
            items.map_or(ALL.into(), Arg::from),
            (&edges.starts).into(),
            (&edges.sources).into(),
            surface.into(),
            (self.shape.points as u32).into(),
            (&self.placed().tree.sources.xyz).into(),
            (self.placed().tree.sources.len() as u64).into(),
            (&w.strengths).into(),
            (&w.check).into(),
        ];
        let count = items.map_or(self.placed().tree.len(), Buffer::len);
        let block = surface_shape(self.shape.points).0 as u32;
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
        let tables = &self.placed().tables;
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
            (&self.placed().tree.targets.xyz).into(),
            (self.placed().tree.targets.len() as u64).into(),
            (&self.placed().workspace.values).into(),
        ];
        let grid = (blocks(items.len(), 1)?, self.placed().parts[1]);
        // SAFETY: arguments as in l2p.cu; densities have a row for each box.
        unsafe { self.device().launch(&self.programs.l2p, "from_surface", grid, LEAF_THREADS as u32, &args) }
    }

    /// What strengths are divided by: null where nothing is in f32.
    fn largest(&self) -> Arg {
        if single::<T, N>() { (&self.placed().workspace.largest).into() } else { 0u64.into() }
    }

    /// Enqueues strengths of the caller into tree order.
    fn scatter(&mut self, given: u64) -> Result<(), Error> {
        let device = self.device().clone();
        let w = &mut self.placed_mut().workspace;
        device.clear(&mut w.values)?;
        device.clear(&mut w.check)?;
        device.clear(&mut w.largest)?;
        let (w, points, width) = (&self.placed().workspace, &self.placed().tree.sources, self.shape.strengths);
        let (count, functions) = (w.strengths.len(), &self.programs.arrange);
        let grid = (blocks(count, BLOCK as usize)?, 1);
        let (order, n) = ((&points.order).into(), (points.len() as u64).into());
        let args = [given.into(), order, n, (width as u32).into(), self.largest(), (&w.strengths).into()];
        // SAFETY: arguments as in arrange.cu; both arrays have a row for each point.
        unsafe {
            if single::<T, N>() {
                let factors = self.placed().tables.check.at(LEVEL_HEAD);
                let all = [given.into(), n, (width as u32).into(), factors, (&w.largest).into()];
                device.launch(functions, "largest", (grid.0.min(WALKERS), 1), BLOCK, &all)?;
            }
            device.launch(functions, "scatter", grid, BLOCK, &args)
        }
    }

    /// Enqueues values in tree order into those of the caller.
    fn gather(&mut self, out: u64) -> Result<(), Error> {
        let (w, points, width) = (&self.placed().workspace, &self.placed().tree.targets, self.shape.values);
        let (order, n) = ((&points.order).into(), (points.len() as u64).into());
        let scale = self.scale.into();
        let args = [(&w.values).into(), order, n, (width as u32).into(), self.largest(), scale, out.into()];
        let grid = (blocks(w.values.len(), BLOCK as usize)?, 1);
        // SAFETY: arguments as in arrange.cu; both arrays have a row for each point.
        unsafe { self.device().launch(&self.programs.arrange, "gather", grid, BLOCK, &args) }
    }

    /// Enqueues P2P, beside what follows if the plan says so.
    fn near(&self) -> Result<(), Error> {
        let (tables, tree, w) = (&self.placed().tables, &self.placed().tree, &self.placed().workspace);
        let same = std::sync::Arc::ptr_eq(&tree.sources, &tree.targets);
        let args = [
            (&tables.boxes).into(),
            (&tables.corner).into(),
            (&tables.near).into(),
            (&self.placed().edges.p2p.boxes).into(),
            (&self.placed().lists.p2p.starts).into(),
            (&self.placed().lists.p2p.sources).into(),
            u32::from(same).into(),
            (&tree.sources.xyz).into(),
            (tree.sources.len() as u64).into(),
            (&w.strengths).into(),
            (&tree.targets.xyz).into(),
            (tree.targets.len() as u64).into(),
            (&w.values).into(),
        ];
        let grid = (blocks(self.placed().edges.p2p.len(), 1)?, self.placed().parts[0]);
        let (device, functions, threads) = (self.device(), &self.programs.p2p, LEAF_THREADS as u32);
        // SAFETY: arguments as in p2p.cu; values have a row for each target, and nothing else writes them before the
        // streams are joined.
        unsafe {
            if self.beside() {
                device.launch_beside(functions, "p2p", grid, threads, &args)
            } else {
                device.launch(functions, "p2p", grid, threads, &args)
            }
        }
    }
}

/// What runs beside a run that was stopped is waited for by whatever follows.
impl<T: DeviceScalar, N: Real> Drop for Run<'_, T, N> {
    fn drop(&mut self) {
        // A device that refuses this refuses what follows, too.
        let _ = self.plan.device().join();
    }
}

impl<T: DeviceScalar, N: Real> Stages for Run<'_, T, N> {
    /// The plan holds them.
    type Lists = ();

    fn levels(&self) -> usize {
        self.plan.placed().tree.level_start.len() - 1
    }

    /// With P2P beside the far field, of which it needs nothing.
    fn scatter(&mut self) -> Result<(), Error> {
        let given = self.ends.strengths;
        self.timed(Stage::Scatter, |p| p.scatter(given))?;
        if !self.plan.beside() {
            return Ok(());
        }
        let device = self.plan.device().clone();
        device.fork()?;
        let from = device.mark_beside()?;
        self.plan.near()?;
        self.marks.push((Stage::P2p, from, device.mark_beside()?));
        Ok(())
    }

    fn p2m(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::P2m, |p| {
            if p.stock().next().is_none() {
                return Ok(());
            }
            let leaves = &p.placed().edges.leaves;
            p.to_surface(&p.placed().lists.p2m, Some(&leaves.boxes), &p.placed().tables.outer)?;
            for level in 0..p.placed().sets.len() {
                // SAFETY: the items of a level exist, and `middle` holds a row for each.
                unsafe { p.solve_upward(level, &leaves.boxes, leaves.of(level))? };
            }
            Ok(())
        })
    }

    fn m2m(&mut self, _: &(), level: usize) -> Result<(), Error> {
        self.timed(Stage::M2m, |p| {
            let (edges, parents, w) = (&p.placed().edges.m2m, &p.placed().edges.parents, &p.placed().workspace);
            if parents.of(level).1 == 0 || p.stock().next().is_none() {
                return Ok(());
            }
            let operators = p.operators(level);
            // Each child into its own row, which has served, then the rows of a family into that of the parent.
            let from = (&w.multipoles, p.shape.density, (&edges.from).into());
            let to = (&w.check, p.shape.check, (&edges.from).into());
            let (starts, tiles) = (edges.device_starts.at(8 * (level + 1)), edges.tiles(level + 1, MULTIPLY_EDGE));
            let ((first, count), rows) = (parents.of(level), &p.placed().lists.m2m);
            let args = [
                parents.boxes.at(first),
                (count as u32).into(),
                (&rows.starts).into(),
                (&rows.sources).into(),
                (p.shape.check as u32).into(),
                (&w.check).into(),
            ];
            let grid = (blocks(count * p.shape.check, BLOCK as usize)?, 1);
            // SAFETY: the edges exist, and a box has one parent; arguments as in multiply.cu.
            unsafe {
                p.multiply(&operators.m2m, from, to, Which::Groups { starts, tiles }, 1.0, false)?;
                p.device().launch(&p.programs.multiply, "add_rows", grid, BLOCK, &args)?;
            }
            // SAFETY: the items of a level exist, and `middle` holds a row for each.
            unsafe { p.solve_upward(level, &parents.boxes, parents.of(level)) }
        })
    }

    fn m2l(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::M2l, |p| {
            let device = p.device().clone();
            device.clear(&mut p.placed_mut().workspace.check)?;
            match &p.placed().edges.m2l {
                Far::None => Ok(()),
                Far::Fourier(families) => p.m2l_fourier(&device, families),
                Far::Dense(table) => p.m2l_dense(&device, table),
            }
        })
    }

    fn p2l(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::P2l, |p| {
            if p.placed().lists.p2l.is_empty() || p.stock().next().is_none() {
                return Ok(());
            }
            p.to_surface(&p.placed().lists.p2l, None, &p.placed().tables.inner)
        })
    }

    fn l2l(&mut self, _: &(), level: usize) -> Result<(), Error> {
        self.timed(Stage::L2l, |p| {
            let (edges, active, w) = (&p.placed().edges.l2l, &p.placed().edges.active, &p.placed().workspace);
            if active.of(level).1 == 0 || p.stock().next().is_none() {
                return Ok(());
            }
            if level > 0 && edges.any(level) {
                // The operator from the parent belongs to the parent's unit box.
                let operators = p.operators(level - 1);
                let from = (&w.locals, p.shape.density, (&edges.from).into());
                let to = (&w.check, p.shape.check, (&edges.to).into());
                let (starts, tiles) = (edges.device_starts.at(8 * level), edges.tiles(level, MULTIPLY_EDGE));
                let (groups, factor) = (Which::Groups { starts, tiles }, operators.l2l_factor);
                // SAFETY: a box has one parent; the edges exist.
                unsafe { p.multiply(&operators.l2l, from, to, groups, factor, true)? };
            }
            let downward = &p.operators(level).downward;
            // SAFETY: levels come in order; the items of a level exist, and `middle` holds a row for each.
            unsafe {
                p.separate(level)?;
                p.solve(downward, &active.boxes, active.of(level), &w.locals)
            }
        })
    }

    /// Adds to what P2P has written.
    fn l2p(&mut self, _: &()) -> Result<(), Error> {
        self.plan.device().join()?;
        self.timed(Stage::L2p, |p| {
            p.at_targets(
                &p.placed().lists.l2p,
                &p.placed().edges.l2p.boxes,
                &p.placed().tables.outer,
                &p.placed().workspace.locals,
            )?;
            p.affine_at_targets()
        })
    }

    fn m2p(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::M2p, |p| {
            p.at_targets(
                &p.placed().lists.m2p,
                &p.placed().edges.m2p.boxes,
                &p.placed().tables.inner,
                &p.placed().workspace.multipoles,
            )
        })
    }

    /// Unless [`scatter`](Run::scatter) has enqueued it.
    fn p2p(&mut self, _: &()) -> Result<(), Error> {
        if self.plan.beside() { Ok(()) } else { self.timed(Stage::P2p, |p| p.near()) }
    }

    fn gather(&mut self) -> Result<(), Error> {
        let out = self.ends.values;
        self.timed(Stage::Gather, |p| p.gather(out))
    }
}
