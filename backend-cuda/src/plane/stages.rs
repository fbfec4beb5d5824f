//! The stages of an evaluation in the plane.

use super::plan::{PlanePlan, single, width};
use super::pyramid::{WARP_BLOCK, WARPS};
use crate::device::{Arg, MAX_WALKING_BLOCKS, blocks};
use crate::ends::{Arrays, Rows};
use crate::equivalent::DeviceScalar;
use crate::evaluation::Evaluation;
use crate::programs::{Groups, LEAF_THREADS};
use crate::run::Mode;
use adaptive2d::pyramid::level_start;
use cudarc::driver::CudaEvent;
use fmm_traits::{Error, Real, Stage, StageSeconds, Stages};

/// Threads per block that look at all strengths.
const BLOCK: u32 = 256;

impl<T: DeviceScalar, N: Real> PlanePlan<T, N> {
    /// Enqueues a kernel of the series with one warp for each of `n` rows. The first argument is the pyramid.
    unsafe fn warps(&self, entry: &'static str, n: usize, args: &[Arg]) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.launch(entry, blocks(n, WARPS)?, args) }
    }
    /// Enqueues a kernel of the series with one thread for each of `n` boxes. The first argument is the pyramid.
    unsafe fn threads(&self, entry: &'static str, n: usize, args: &[Arg]) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.launch(entry, blocks(n, WARP_BLOCK as usize)?, args) }
    }
    unsafe fn launch(&self, entry: &'static str, grid: u32, args: &[Arg]) -> Result<(), Error> {
        let Some(series) = &self.series else { return Ok(()) };
        let args: Vec<Arg> = [(&self.work.described).into()].into_iter().chain(args.iter().copied()).collect();
        // SAFETY: the caller's promise.
        unsafe { self.work.pyramid.device.launch(series, entry, (grid, 1), WARP_BLOCK, &args) }
    }

    fn scatter(&mut self, arrays: &Arrays) -> Result<(), Error> {
        let device = self.device().clone();
        let w = &mut self.work;
        let [_, down] = w.far();
        if !down {
            device.clear(&mut w.values)?;
        }
        let (n, width) = (w.pyramid.sources.n, self.kernel.strengths());
        let rows = Rows { from: (&w.pyramid.sources.order).into(), to: Arg::NULL, n, width };
        let unit = if single::<T, N>() {
            device.clear(&mut w.largest)?;
            self.ends.largest(arrays, [n, width, width], &w.factors, &w.largest, false)?;
            Some(&w.largest)
        } else {
            None
        };
        self.ends.scatter(arrays.given(), rows, width, unit, (&w.strengths).into(), true)?;
        if self.kernel.real_member(0).is_none() {
            return Ok(());
        }
        device.clear(&mut w.imaginary)?;
        let args = [(&w.strengths).into(), (n as u64).into(), (&w.imaginary).into()];
        let grid = blocks(n, BLOCK as usize)?.min(MAX_WALKING_BLOCKS);
        // SAFETY: arguments as in plane_p2p.cu; there are n strengths.
        unsafe { device.launch(&self.near, "plane_imaginary", (grid, 1), BLOCK, &args) }
    }

    /// Points and strengths of the sources.
    fn charged(&self) -> [Arg; 3] {
        let sources = &self.work.pyramid.sources;
        [sources.axis(0), sources.axis(1), (&self.work.strengths).into()]
    }

    fn p2m(&self) -> Result<(), Error> {
        let w = &self.work;
        if !w.far()[0] {
            return Ok(());
        }
        let [x, y, strengths] = self.charged();
        // SAFETY: arguments as in plane_series.cu; there is a multipole for each box.
        unsafe { self.warps("plane_p2m", w.pyramid.leaves(), &[x, y, strengths, (&w.multipoles).into()]) }
    }

    /// Into the boxes of `level`, unless no edge needs their multipoles.
    fn m2m(&self, level: usize) -> Result<(), Error> {
        let w = &self.work;
        if w.lists.m2l.is_empty() || level < w.lists.first_level || level >= w.pyramid.depth {
            return Ok(());
        }
        let children = level_start(level + 2) - level_start(level + 1);
        // SAFETY: as above.
        unsafe { self.threads("plane_m2m", children, &[(level as u32).into(), (&w.multipoles).into()]) }
    }

    fn m2l(&self) -> Result<(), Error> {
        let (w, m2l) = (&self.work, &self.work.lists.m2l);
        if !w.far()[1] {
            return Ok(());
        }
        let args = [(&m2l.starts).into(), (&m2l.sources).into(), (&w.multipoles).into(), (&w.locals).into()];
        // SAFETY: as above; there is a local for each box.
        unsafe { self.warps("plane_m2l", w.pyramid.len(), &args) }
    }

    fn p2l(&self) -> Result<(), Error> {
        let (w, p2l) = (&self.work, &self.work.lists.p2l);
        if p2l.is_empty() {
            return Ok(());
        }
        let [x, y, strengths] = self.charged();
        let edges = [w.lists.of_leaves(p2l), (&p2l.sources).into()];
        let args = [edges[0], edges[1], x, y, strengths, (&w.locals).into()];
        // SAFETY: as above.
        unsafe { self.warps("plane_p2l", w.pyramid.leaves(), &args) }
    }

    fn l2l(&self, level: usize) -> Result<(), Error> {
        let w = &self.work;
        if !w.far()[1] || level <= w.lists.first_level {
            return Ok(());
        }
        let boxes = level_start(level + 1) - level_start(level);
        // SAFETY: as above.
        unsafe { self.threads("plane_l2l", boxes, &[(level as u32).into(), (&w.locals).into()]) }
    }

    fn l2p(&self) -> Result<(), Error> {
        let w = &self.work;
        if !w.far()[1] {
            return Ok(());
        }
        let targets = &w.pyramid.targets;
        let args = [targets.axis(0), targets.axis(1), (&w.locals).into(), (&w.values).into()];
        // SAFETY: as above; there is a row of values for each target.
        unsafe { self.warps("plane_l2p", w.pyramid.leaves(), &args) }
    }

    fn m2p(&self) -> Result<(), Error> {
        let (w, m2p) = (&self.work, &self.work.lists.m2p);
        if m2p.is_empty() {
            return Ok(());
        }
        let targets = &w.pyramid.targets;
        let args = [
            w.lists.of_leaves(m2p),
            (&m2p.sources).into(),
            targets.axis(0),
            targets.axis(1),
            (&w.multipoles).into(),
            (&w.values).into(),
        ];
        // SAFETY: as above.
        unsafe { self.warps("plane_m2p", w.pyramid.leaves(), &args) }
    }

    fn p2p(&self) -> Result<(), Error> {
        let (w, p2p) = (&self.work, &self.work.lists.p2p);
        let (pyramid, leaves) = (&w.pyramid, w.pyramid.leaves());
        let [x, y, strengths] = self.charged();
        let args = [
            (&w.described).into(),
            (&w.imaginary).into(),
            w.lists.of_leaves(p2p),
            (&p2p.sources).into(),
            x,
            y,
            strengths,
            pyramid.targets.axis(0),
            pyramid.targets.axis(1),
            (&w.values).into(),
        ];
        let group = Groups::plane::<N>(width(self.kernel, self.derivatives)).targets();
        let parts = blocks_of_a_leaf(pyramid.targets.n, leaves, group);
        let (grid, block) = ((blocks(leaves, 1)?, parts), LEAF_THREADS as u32);
        // SAFETY: arguments as in plane_p2p.cu; there is a row of values for each target.
        unsafe { pyramid.device.launch(&self.near, "plane_p2p", grid, block, &args) }
    }

    fn gather(&self, arrays: &Arrays) -> Result<(), Error> {
        let (w, targets) = (&self.work, &self.work.pyramid.targets);
        let width = width(self.kernel, self.derivatives);
        let rows = Rows { from: Arg::NULL, to: (&targets.order).into(), n: targets.n, width };
        let scale = (single::<T, N>().then_some(&w.largest), self.kernel.scale());
        self.ends.gather(arrays, rows, scale, [0u32.into(), (&w.values).into()])
    }
}

/// One evaluation.
pub(super) struct Run<'a, T: DeviceScalar, N: Real> {
    plan: &'a mut PlanePlan<T, N>,
    arrays: &'a Arrays,
    mode: Mode,
    marks: Vec<(Stage, CudaEvent, CudaEvent)>,
}

impl<'a, T: DeviceScalar, N: Real> Run<'a, T, N> {
    pub fn new(plan: &'a mut PlanePlan<T, N>, arrays: &'a Arrays, mode: Mode) -> Self {
        Run { plan, arrays, mode, marks: Vec::new() }
    }
    /// Seconds of each stage, if they are timed.
    pub fn seconds(&self) -> Result<StageSeconds, Error> {
        let mut seconds = StageSeconds::default();
        for (stage, from, to) in &self.marks {
            seconds[*stage as usize] += self.plan.device().seconds(from, to)?;
        }
        Ok(seconds)
    }
    fn timed(
        &mut self,
        stage: Stage,
        work: impl FnOnce(&mut PlanePlan<T, N>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.mode != Mode::Timed {
            return work(self.plan);
        }
        let from = self.plan.device().mark()?;
        work(self.plan)?;
        self.marks.push((stage, from, self.plan.device().mark()?));
        Ok(())
    }
}

impl<T: DeviceScalar, N: Real> Stages for Run<'_, T, N> {
    /// Empty: the plan holds the lists.
    type Lists = ();

    fn levels(&self) -> usize {
        self.plan.pyramid().depth + 1
    }
    fn scatter(&mut self) -> Result<(), Error> {
        let arrays = self.arrays;
        self.timed(Stage::Scatter, |p| p.scatter(arrays))
    }
    fn p2m(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::P2m, |p| p.p2m())
    }
    fn m2m(&mut self, _: &(), level: usize) -> Result<(), Error> {
        self.timed(Stage::M2m, |p| p.m2m(level))
    }
    fn m2l(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::M2l, |p| p.m2l())
    }
    fn p2l(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::P2l, |p| p.p2l())
    }
    fn l2l(&mut self, _: &(), level: usize) -> Result<(), Error> {
        self.timed(Stage::L2l, |p| p.l2l(level))
    }
    fn l2p(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::L2p, |p| p.l2p())
    }
    fn m2p(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::M2p, |p| p.m2p())
    }
    fn p2p(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::P2p, |p| p.p2p())
    }
    fn gather(&mut self) -> Result<(), Error> {
        let arrays = self.arrays;
        self.timed(Stage::Gather, |p| p.gather(arrays))
    }
}

/// Number of blocks per leaf: enough for leaves of twice the mean population. In larger leaves a block has several
/// groups.
fn blocks_of_a_leaf(targets: usize, leaves: usize, group: usize) -> u32 {
    let mean = targets as f64 / leaves.max(1) as f64;
    (2.0 * mean / group as f64).ceil().clamp(1.0, 1024.0) as u32
}
