//! One evaluation on the device. Stages are enqueued between time marks, or recorded once and replayed. P2P runs beside
//! the far field (on a second stream) or behind it.

use crate::ends::Arrays;
use crate::equivalent::DeviceScalar;
use crate::plan::{Plan, Replay};
use cudarc::driver::CudaEvent;
use fmm_traits::{Error, Real, Stage, Stages, Step};

/// How the stages between both ends are run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Enqueued between time marks.
    Timed,
    /// Enqueued.
    Plain,
    /// Enqueued while the thread records. Both ends are left out, because their arrays change.
    Record,
    /// Launched as they were recorded, between both ends.
    Replay,
}

/// One evaluation.
pub(crate) struct Run<'a, T: DeviceScalar, N: Real> {
    plan: &'a mut Plan<T, N>,
    arrays: &'a Arrays,
    mode: Mode,
    marks: Vec<(Stage, CudaEvent, CudaEvent)>,
}

impl<'a, T: DeviceScalar, N: Real> Run<'a, T, N> {
    pub fn new(plan: &'a mut Plan<T, N>, arrays: &'a Arrays, mode: Mode) -> Self {
        Run { plan, arrays, mode, marks: Vec::new() }
    }

    /// Seconds of each stage on the device; zeros if nothing is timed. Waits for all timed stages. If P2P runs beside
    /// the far field, the sum exceeds the elapsed time.
    pub fn seconds(&self) -> Result<[f64; Stage::ALL.len()], Error> {
        let mut seconds = [0.0; Stage::ALL.len()];
        for (stage, from, to) in &self.marks {
            seconds[*stage as usize] += self.plan.device().seconds(from, to)?;
        }
        Ok(seconds)
    }

    /// Enqueues the stage at one end of the evaluation.
    fn end(
        &mut self,
        stage: Stage,
        work: impl FnOnce(&mut Plan<T, N>, &Arrays) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let arrays = self.arrays;
        match self.mode {
            Mode::Timed => self.timed(stage, |plan| work(plan, arrays)),
            Mode::Plain | Mode::Replay => work(self.plan, arrays),
            Mode::Record => Ok(()),
        }
    }

    /// Enqueues a stage, in the way of the mode.
    fn timed(&mut self, stage: Stage, work: impl FnOnce(&mut Plan<T, N>) -> Result<(), Error>) -> Result<(), Error> {
        match self.mode {
            Mode::Timed => {}
            Mode::Plain | Mode::Record => return work(self.plan),
            Mode::Replay => return Ok(()),
        }
        let from = self.plan.device().mark()?;
        work(self.plan)?;
        self.marks.push((stage, from, self.plan.device().mark()?));
        Ok(())
    }

    /// Enqueues P2P of the current piece if it runs beside the far field. P2P needs no result of the far field.
    fn beside(&mut self) -> Result<(), Error> {
        if !self.plan.beside() {
            return Ok(());
        }
        let device = self.plan.device().clone();
        device.fork()?;
        if self.mode != Mode::Timed {
            return self.plan.base.p2p(&self.plan.near, true);
        }
        let from = device.mark_beside()?;
        self.plan.base.p2p(&self.plan.near, true)?;
        self.marks.push((Stage::P2p, from, device.mark_beside()?));
        Ok(())
    }
}

/// If a run is cancelled, P2P may still be running on the second stream. Later work waits for it: freed buffers are taken
/// again in the order of the first stream ([`Shelves`](crate::pool::Shelves)).
impl<T: DeviceScalar, N: Real> Drop for Run<'_, T, N> {
    fn drop(&mut self) {
        if self.mode == Mode::Replay {
            return;
        }
        self.plan.device().join_or_wait();
    }
}

impl<T: DeviceScalar, N: Real> Stages for Run<'_, T, N> {
    /// Empty: the plan holds the lists.
    type Lists = ();

    fn levels(&self) -> usize {
        self.plan.tree().level_start.len() - 1
    }

    /// The stages at the targets come once for each piece of the targets.
    fn order(&self) -> Vec<Step> {
        let mut steps = Step::in_order(self.levels());
        let at_targets = steps.iter().position(|step| *step == Step::Whole(Stage::L2p)).unwrap_or(steps.len());
        let once = steps.split_off(at_targets);
        steps.extend(once.repeat(self.plan.pieces()));
        steps
    }

    /// Begins the first piece. Also enqueues P2P if it runs beside the far field.
    fn scatter(&mut self) -> Result<(), Error> {
        self.end(Stage::Scatter, |p, arrays| p.base.scatter(&p.near, &p.ends, arrays))?;
        if let (Mode::Replay, Replay::Recorded(graph)) = (self.mode, &self.plan.replay) {
            return graph.launch();
        }
        self.beside()
    }

    fn p2m(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::P2m, |p| p.far.p2m(&p.base))
    }

    fn m2m(&mut self, _: &(), level: usize) -> Result<(), Error> {
        self.timed(Stage::M2m, |p| p.far.m2m(&p.base, level))
    }

    /// Counts as M2M. Enqueues kernels and copies, while P2P may run beside.
    fn exchange(&mut self) -> Result<(), Error> {
        self.timed(Stage::M2m, |p| match p.base.ranks() {
            Some(ranks) => p.far.exchange(&p.base, ranks),
            None => Ok(()),
        })
    }

    fn m2l(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::M2l, |p| p.far.m2l(&p.base))
    }

    fn p2l(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::P2l, |p| p.far.p2l(&p.base))
    }

    fn l2l(&mut self, _: &(), level: usize) -> Result<(), Error> {
        self.timed(Stage::L2l, |p| p.far.l2l(&p.base, level))
    }

    /// Waits for P2P if it runs beside, since L2P adds to the values that P2P has written.
    fn l2p(&mut self, _: &()) -> Result<(), Error> {
        if self.mode != Mode::Replay {
            self.plan.device().join()?;
        }
        self.timed(Stage::L2p, |p| p.far.l2p(&p.base))
    }

    fn m2p(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::M2p, |p| p.far.m2p(&p.base))
    }

    /// Does nothing if P2P runs beside the far field.
    fn p2p(&mut self, _: &()) -> Result<(), Error> {
        if self.plan.beside() { Ok(()) } else { self.timed(Stage::P2p, |p| p.base.p2p(&p.near, false)) }
    }

    /// Ends a piece, and begins the next one.
    fn gather(&mut self) -> Result<(), Error> {
        self.end(Stage::Gather, |p, arrays| p.base.gather(&p.near, p.scale, &p.ends, arrays))?;
        match self.plan.base.next() {
            Some(piece) => self.plan.base.begin(piece).and_then(|()| self.beside()),
            None => Ok(()),
        }
    }
}
