//! A decision that one processor makes for several engines, each of which gets a part of the points.

use super::forecast::{bytes, choice, fits};
use super::{Decision, Ends, candidates, decide};
use crate::candidates::Task;
use crate::choice::Choice;
use crate::engine::{self, Watch};
use crate::mesh::Mesh;
use crate::probe::ProbeReport;
use crate::request::Fmm;
use fmm_traits::Error;

/// What was decided, without the engine that holds the points.
pub(crate) struct Decided {
    choice: Choice,
    order: usize,
    probe: Option<ProbeReport>,
}

impl Decided {
    /// The decision of the processor of `r` for all points. `None` if its memory may be too small for a candidate: with
    /// more memory the decision might be another one.
    pub fn by_one(r: &Fmm, task: &Task, ends: Ends, watch: Watch) -> Result<Option<Decided>, Error> {
        let decided = || -> Result<Decided, Error> {
            for candidate in candidates(r, task, ends.seen)? {
                let choice = choice(r, task, &candidate, candidate.first, ends.seen);
                fits(&*engine::of(r, &choice), &choice, ends.seen.counts)?;
            }
            let Decision { choice, order, probe, .. } = decide(r, task, ends, watch)?;
            Ok(Decided { choice, order, probe })
        };
        match decided() {
            Err(Error::Memory { .. }) => Ok(None),
            other => other.map(Some),
        }
    }

    /// This decision for a rank whose points are `ends`. Its engine holds them, but is not settled.
    pub fn on_a_rank(&self, r: &Fmm, task: &Task, ends: Ends, watch: Watch) -> Result<Decision, Error> {
        let mut choice = Choice { threads: task.threads, ..self.choice.clone() };
        choice.forecast = bytes(r, &choice, ends.seen);
        let mut engine = engine::of(r, &choice);
        r.jointly(|| {
            fits(&*engine, &choice, ends.seen.counts)?;
            engine.place(ends.cloud, watch)
        })?;
        Ok(Decision { engine, choice, order: self.order, mesh: Mesh::default(), probe: self.probe.clone() })
    }
}
