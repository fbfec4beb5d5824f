//! Plans of several ranks ([`Fmm::ranks`]). Every step here is a joint one: all ranks take it, and all get the error of
//! one.

use super::{Plan, watch};
use crate::candidates::{self, Seen};
use crate::cloud::{Cloud, Given};
use crate::coordinates::{self, Mapped};
use crate::decide::{self, Decision, Ends, decide};
use crate::engine::Placed;
use crate::request::Fmm;
use crate::threads::Threads;
use crate::validate;
use crate::variant::Translation;
use backend_cuda::{DeviceArray, DeviceStream};
use fmm_dist::World;
use fmm_traits::{Error, Targets, cores};
use std::time::Instant;

impl Plan {
    /// [`Fmm::jointly`].
    pub(crate) fn jointly<R>(&self, work: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
        self.request.jointly(work)
    }

    /// Moves rows of `width` numbers, one for each source of this rank, to the ranks that own the sources: N×width, row-major.
    /// Returns rows of the sources that this rank owns, in the order of the tree. All ranks call it together.
    ///
    /// A rank that owns sources of another sends and gets strengths and sums in each evaluation. A program whose points may
    /// live on any rank can move them, with all that belongs to them, to their owners, and plan again there. Then
    /// only multipoles and the strengths of ghosts travel:
    ///
    /// ```
    /// use fmm::{Fmm, Laplace, Targets, ranks};
    ///
    /// let sums = ranks::threads(2, |world| {
    ///     let points = fmm::demo::points(fmm::demo::Demo::Uniform, 1000, world.rank() as u64);
    ///     let charges = vec![1.0; 1000];
    ///     let request = Fmm::new(Laplace).order(4).ranks(&world);
    ///     let plan = request.plan(&points, Targets::Sources)?;
    ///     let (points, charges) = (plan.adopt(&points, 3)?, plan.adopt(&charges, 1)?);
    ///     let plan = request.plan(&points, Targets::Sources)?;
    ///     assert_eq!(plan.describe().ranks.unwrap().owned_sources, charges.len());
    ///     plan.apply(&charges)
    /// });
    /// # assert!(sums.into_iter().all(|sum| sum.unwrap().is_ok()));
    /// ```
    ///
    /// On one rank, on several GPUs of one process, and for direct sums, rows stay as they are.
    ///
    /// # Errors
    /// [`Error::Shape`] if there is not a row for each source, and the errors of other ranks.
    pub fn adopt(&self, rows: &[f64], width: usize) -> Result<Vec<f64>, Error> {
        self.jointly(|| {
            self.rows_of_sources(rows.len(), width)?;
            let Some(world) = &self.request.world else { return Ok(rows.to_vec()) };
            world.agree(&[("the numbers of a row", width.to_string())])?;
            self.engine.as_ref().map_or(Ok(rows.to_vec()), |engine| engine.adopt(rows, width))
        })
    }

    /// [`adopt`](Plan::adopt) for rows on the device of this rank. The call comes after the work that is already in `stream`, and
    /// waits. The returned array belongs to the device of the rank.
    ///
    /// # Errors
    /// As there; [`Error::Unsupported`] if the points are not on devices, [`Error::Array`] for an array of another device, and
    /// errors of the device.
    pub fn adopt_on_device(
        &self,
        rows: &DeviceArray,
        width: usize,
        stream: &DeviceStream,
    ) -> Result<DeviceArray, Error> {
        self.jointly(|| {
            if !self.on_device {
                let reason = "the points are on the host, and so must be the rows: use adopt".to_string();
                return Err(Error::Unsupported { operation: "adopt_on_device", reason });
            }
            self.rows_of_sources(rows.len(), width)?;
            let Some(world) = &self.request.world else { return Ok(rows.clone()) };
            let kind = format!("{width} numbers in {}", rows.precision().name());
            world.agree(&[("the numbers of a row", kind)])?;
            self.engine.as_ref().map_or(Ok(rows.clone()), |engine| engine.adopt_on_device(rows, width, stream))
        })
    }

    /// Checks that there is a row of `width` numbers for each source.
    fn rows_of_sources(&self, found: usize, width: usize) -> Result<(), Error> {
        let expected = self.n_sources * width;
        if found == expected {
            return Ok(());
        }
        let why = "sources × numbers of a row".to_string();
        Err(Error::Shape { array: "rows", found, expected, why })
    }

    /// An error on several ranks, or on several GPUs.
    pub(crate) fn one_rank_only(&self, operation: &'static str) -> Result<(), Error> {
        match self.is_shared() {
            true => Err(Error::Unsupported { operation, reason: "the points are on several ranks".to_string() }),
            false => Ok(()),
        }
    }

    /// The number of sets of strengths that all ranks can sum at once, if this one can sum `further` beside the first.
    pub(crate) fn agreed_sets(&self, sets: usize, further: u64) -> Result<u64, Error> {
        let Some(world) = &self.request.world else { return Ok(further) };
        world.together(|| {
            world.agree(&[("the number of sets of strengths", sets.to_string())])?;
            let mut least = [further];
            world.reduce(&mut least, u64::min)?;
            Ok(least[0])
        })
    }

    /// A plan for the points of all ranks, which decide together. If a GPU does not hold all points, ranks make trees of
    /// their own on the host.
    pub(super) fn on_ranks(request: Fmm, given: Given<'_>, world: &World) -> Result<Plan, Error> {
        let start = Instant::now();
        let (request, mapped) = world.together(|| {
            agree(&request, &given, world)?;
            let mut request = coordinates::resolve(request, &given);
            let mut least = [request.threads.unwrap_or_else(cores) as u64];
            world.reduce(&mut least, u64::min)?;
            request.priced_threads = Some(least[0] as usize);
            let mapped = Mapped::of(&request, given)?;
            Ok((request, mapped))
        })?;
        let given = Mapped::instead_of(&mapped, given);
        let other_way = request.has_whole_trees() && !given.on_device();
        let mut plan = match Plan::placed_on_ranks(request.clone(), given, world) {
            Err(e) if other_way && e.lacks_memory() => {
                Plan::placed_on_ranks(Fmm { host_trees: true, ..request }, given, world)?
            }
            placed => placed?,
        };
        plan.seconds.plan = start.elapsed().as_secs_f64();
        Ok(plan)
    }

    /// A plan for points in the coordinates of the family of the request.
    fn placed_on_ranks(request: Fmm, given: Given<'_>, world: &World) -> Result<Plan, Error> {
        let (mut plan, task, cloud, seen, own) = world.together(|| {
            let dim = request.family.dim();
            let own @ [n_sources, n_targets] = given.counts(dim)?;
            let all = world.all_gather([n_sources as u64, n_targets as u64])?;
            let counts = [0, 1].map(|k| all.iter().map(|c| c[k] as usize).sum());
            let task = candidates::check(&request, counts)?;
            // All ranks decide, and decide alike by the same prices.
            let prices = request.backend.processor().prices(&request, &task.facts).source().to_string();
            world.agree(&[("the measured costs of the processor", prices)])?;
            let pool = Threads::new(task.threads)?;
            let (cloud, extent) = pool.install(|| -> Result<_, Error> {
                if request.has_whole_trees() {
                    let cloud = Cloud::of_all_ranks(&request, &task.facts, given, world)?;
                    let extent = cloud.extent(dim)?;
                    return Ok((cloud, extent));
                }
                let mine @ (sources, targets) = given.on_host()?;
                Ok((Cloud::host(&task.facts, sources, targets)?, extent(world, mine, dim)?))
            })?;
            let seen = Seen { counts, apart: given.separate(), extent };
            task.facts.check(seen.extent)?;
            let choice = decide::forecast(&request, seen)?;
            Ok((Plan::without_engine(request, choice, pool), task, cloud, seen, own))
        })?;
        if seen.counts.contains(&0) {
            plan.choice.why = "there is nothing to sum".to_string();
            plan.took(Placed::default(), own, given);
            return Ok(plan);
        }
        let r = &plan.request;
        let watch = |phase, fraction| watch(r, phase, fraction);
        let (placed, decision) = plan.pool.install(|| -> Result<_, Error> {
            let ends = Ends { cloud: &cloud, seen };
            let mut decision = decide(r, &task, ends, &watch)?;
            drop(cloud);
            let placed = r.jointly(|| decision.engine.settle(decision.order, &watch))?;
            decision.engine.commit();
            Ok((placed, decision))
        })?;
        let Decision { engine, choice, mesh, probe, .. } = decision;
        (plan.engine, plan.choice, plan.probe, plan.probed) = (Some(engine), choice, probe, mesh);
        plan.took(placed, own, given);
        Ok(plan)
    }
}

/// The error of what sums on several ranks do not have.
fn refused(reason: &str) -> Error {
    Error::Unsupported { operation: "a sum on several ranks", reason: reason.to_string() }
}

/// Refuses what sums on several ranks do not have.
pub(super) fn check(r: &Fmm, given: &Given<'_>) -> Result<(), Error> {
    let refuse = |reason: &str| Err(refused(reason));
    if r.family.dim() != 3 {
        return refuse("kernels of the plane run on one rank");
    }
    if given.on_device() && !r.has_whole_trees() {
        return refuse("they take arrays of the host, unless they are few, on GPUs, and no exchange is named");
    }
    if !r.backend.several().is_empty() {
        return refuse("a rank has one GPU: name another one for each rank");
    }
    if !(r.speed > 0.0 && r.speed.is_finite()) {
        let requirement = "the speed of a rank must be positive and finite";
        return Err(Error::Parameter { name: "speed", value: r.speed, requirement });
    }
    if r.variant.translation == Some(Translation::Domains) {
        return refuse("translations to domains depend on the boxes of a level, which differ from rank to rank");
    }
    if !r.attributes.given.is_empty() || !r.family.attribute_names().is_empty() {
        return refuse("sources with attributes are summed on one rank");
    }
    Ok(())
}

/// Checks a request, and that all ranks make the same.
fn agree(request: &Fmm, given: &Given<'_>, world: &World) -> Result<(), Error> {
    check(request, given)?;
    let kind = match given {
        Given::Host(_, Targets::Sources) | Given::Device(_, None, _) => "the sources",
        Given::Host(_, Targets::Subset(_)) => "a subset of the sources",
        _ => "separate points",
    };
    let mut texts = texts(request);
    texts.push(("the kind of targets", kind.to_string()));
    texts.push(("where the arrays are", if given.on_device() { "on devices" } else { "on hosts" }.to_string()));
    world.agree(&texts)
}

/// The parts of a request on which ranks agree.
fn texts(r: &Fmm) -> Vec<(&'static str, String)> {
    vec![
        ("the kernel", format!("{} {:?}", r.family.name(), r.family.parameters())),
        ("the tolerance", format!("{:?}", r.tolerance)),
        ("the order", format!("{:?}", r.order)),
        ("the norm", format!("{:?}", r.norm)),
        ("the method", format!("{:?}", r.method)),
        ("the variant", format!("{:?}", r.variant)),
        ("the outputs", format!("{:?}", r.outputs)),
        ("the precision", format!("{:?}", r.precision)),
        ("the leaf capacity", format!("{:?}", r.ncrit)),
        ("the root cube", format!("{:?}", r.root)),
        ("the exchange", format!("{:?}", r.exchange)),
        ("the cost model", format!("{:?}", r.costs)),
        ("the backend", r.backend.name().to_string()),
        ("the instruction set", format!("{:?}", r.backend.processor().isa().unwrap_or_else(backend_cpu::Isa::detect))),
    ]
}

/// The extent of the points of all ranks.
fn extent(world: &World, (sources, targets): (&[f64], Targets<'_>), dim: usize) -> Result<f64, Error> {
    let others = if let Targets::Points(t) = targets { t } else { &[][..] };
    let mine: Vec<f64> =
        [sources, others].into_iter().flat_map(|points| validate::bounds(points, dim)).flatten().flatten().collect();
    let all = world.all_gather(mine)?.concat();
    validate::extent(all.as_chunks::<3>().0.as_chunks::<2>().0.iter().copied(), dim)
}
