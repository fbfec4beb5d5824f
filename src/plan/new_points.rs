//! New points of a plan.

use super::{Plan, watch};
use crate::candidates::{self, Goal, Task};
use crate::choice::Choice;
use crate::cloud::{Cloud, Given};
use crate::coordinates::Mapped;
use crate::decide::{exact, measured, reported};
use crate::engine::Engine;
use crate::mesh::Mesh;
use crate::probe::ProbeReport;
use crate::probe::search::{Next, Search};
use crate::request::{Fmm, Method};
use backend_cuda::{DeviceArray, DeviceStream};
use fmm_traits::{Error, Targets};
use std::time::Instant;

impl Plan {
    /// Replaces the points; the method and its operators stay. After an error the plan is as before.
    ///
    /// With a tolerance, the order is measured again if the counts of boxes, edges or near pairs differ by more than a
    /// tenth from the counts at the last measurement (direct sums in f32: always). The order then changes if it must;
    /// [`describe`](Plan::describe) reports the order and the points for which it was measured. If the number of points
    /// doubles or halves, or if targets become separate points, a new plan is made. A given order stays. The old points
    /// and the new points are in memory at once. On several [`ranks`](Fmm::ranks) every call plans anew, and may choose
    /// another method, but for fast methods on up to 32 GPUs.
    ///
    /// # Errors
    /// As [`Fmm::plan`].
    pub fn set_points<'a>(&mut self, sources: &[f64], targets: impl Into<Targets<'a>>) -> Result<(), Error> {
        self.set_given(Given::Host(sources, targets.into()))
    }

    /// [`set_points`](Plan::set_points) with points on a device, as for [`Fmm::plan_on_device`]. Waits for the
    /// evaluations on the old points. Points of a plan may be on the host first and then on a device, and the other way
    /// round.
    ///
    /// # Errors
    /// As [`Fmm::plan_on_device`]. The errors of [`Plan::synchronize`] on the old points; the plan then keeps its
    /// points.
    pub fn set_points_on_device(
        &mut self,
        sources: &DeviceArray,
        targets: Option<&DeviceArray>,
        stream: &DeviceStream,
    ) -> Result<(), Error> {
        self.set_given(Given::Device(sources, targets, stream))
    }

    pub(super) fn set_given(&mut self, given: Given<'_>) -> Result<(), Error> {
        let start = Instant::now();
        if !self.request.backend.several().is_empty() {
            return self.set_on_devices(given);
        }
        let on_ranks = self.request.world.is_some();
        // On ranks, no evaluation runs after its call.
        if self.on_device && !on_ranks {
            self.synchronize()?;
        }
        let anew = on_ranks && (!self.request.has_whole_trees() || self.choice.method == Method::Direct);
        if anew || (given.on_device() || on_ranks) && self.request.unmapped.is_some() {
            *self = Plan::new(self.request.clone(), given)?;
            return Ok(());
        }
        let mapped = Mapped::of(&self.request, given)?;
        let given = Mapped::instead_of(&mapped, given);
        let (counts, kept) = self.request.jointly(|| self.resembles(given))?;
        let own @ [n_sources, _] = given.counts(self.choice.facts.dim)?;
        self.request.attributes.check_count(n_sources)?;
        let task = candidates::check_with(&self.request, counts, self.choice.facts.clone())?;
        let Some(engine) = self.engine.as_deref_mut().filter(|_| kept) else { return self.plan_again(given, start) };
        let r = &self.request;
        let watch = |phase, fraction| watch(r, phase, fraction);
        let old = (self.choice.order.unwrap_or_default(), &self.probed);
        let move_points = || {
            let cloud = match &r.world {
                Some(world) => Cloud::of_all_ranks(r, &task.facts, given, world)?,
                None => Cloud::of(r, &task.facts, given, counts)?,
            };
            cloud.extent(task.facts.dim)?;
            engine.place(&cloud, &watch)?;
            // The engine holds what it needs of the points.
            drop(cloud);
            match order_again(engine, r, &task, &self.choice, old)? {
                Again::None => Ok(None),
                Again::Kept(order) => Ok(Some((engine.settle(order, &watch)?, order, None))),
                Again::Found(order, found) => Ok(Some((engine.settle(order, &watch)?, order, Some(*found)))),
            }
        };
        let moved = self.pool.install(|| r.jointly(move_points));
        // All ranks have new points, or none.
        if let Ok(Some(_)) = moved {
            engine.commit();
        }
        engine.forget();
        // Without an order of the method that keeps the tolerance on these points, another method may.
        let Some((placed, order, found)) = moved? else { return self.plan_again(given, start) };
        if let Some(old) = self.choice.order {
            self.choice.why = match old == order {
                true => format!("kept at order {order} for points that moved"),
                false => format!("order {order} as the new points ask, {old} before"),
            };
        }
        self.choice.order = self.choice.order.map(|_| order);
        match (found, &mut self.probe) {
            (Some((report, mesh)), probe) => (*probe, self.probed) = (Some(report), mesh),
            (None, Some(probe)) => probe.of_earlier_points = true,
            (None, None) => {}
        }
        self.took(placed, own, given);
        self.seconds.plan = start.elapsed().as_secs_f64();
        Ok(())
    }

    /// Plans anew, for points in the coordinates of the family of the request.
    pub(super) fn plan_again(&mut self, given: Given<'_>, start: Instant) -> Result<(), Error> {
        let request = self.request.clone();
        *self = if self.is_shared() { Plan::new(request, given)? } else { Plan::at(request, given)? };
        self.seconds.plan = start.elapsed().as_secs_f64();
        Ok(())
    }

    /// Numbers of sources and targets on all ranks, and whether new points are so much like the present ones that the
    /// method stays.
    fn resembles(&self, given: Given<'_>) -> Result<([usize; 2], bool), Error> {
        let own @ [n, m] = given.counts(self.choice.facts.dim)?;
        let alike = |old: usize, new: usize| new <= 2 * old && old <= 2 * new;
        let kept = alike(self.n_sources, n) && alike(self.n_targets, m) && self.separate == given.separate();
        let Some(world) = &self.request.world else { return Ok((own, kept && !own.contains(&0))) };
        let all = world.all_gather([n as u64, m as u64, u64::from(kept)])?;
        let [n, m, kept] = [0, 1, 2].map(|k| all.iter().map(|rank| rank[k] as usize).sum::<usize>());
        Ok(([n, m], kept == all.len() && n > 0 && m > 0))
    }
}

/// The order of a plan after its points have moved.
enum Again {
    /// The old order holds: the caller gave it, or the counts of the lists have changed too little.
    Kept(usize),
    /// A new measurement found this order. The probe and the counts of the points come with it.
    Found(usize, Box<(ProbeReport, Mesh)>),
    /// No order keeps the tolerance.
    None,
}

/// The order for newly placed points, from the old `order` and the counts `probed` of the points on which it was
/// measured.
fn order_again(
    engine: &mut dyn Engine,
    request: &Fmm,
    task: &Task,
    choice: &Choice,
    (order, probed): (usize, &Mesh),
) -> Result<Again, Error> {
    let tolerance = match (task.goal, choice.tolerance) {
        (Goal::Order(_), _) | (_, None) => return Ok(Again::Kept(order)),
        (_, Some(tolerance)) => tolerance,
    };
    // Rounding errors of direct sums in f32 depend on the points in a way that no count shows.
    let direct = choice.method == Method::Direct;
    if exact(request, choice.method) || !direct && engine.preview(order)?.resembles(probed) {
        return Ok(Again::Kept(order));
    }
    let mut search = Search::new(tolerance, choice.orders(), choice.digits(), order);
    let mut records = Vec::new();
    loop {
        match search.next() {
            Next::Measure(order, _) => search.measured(order, measured(engine, order, &mut records)?),
            Next::Stalled => return Ok(Again::None),
            Next::Found(order) => {
                let report = reported(engine, task, order, &records);
                return Ok(Again::Found(order, Box::new((report, engine.preview(order)?))));
            }
        }
    }
}
