//! Plans of several ranks ([`Fmm::ranks`]). Every step here is a joint one: all ranks take it, and all get the error of
//! one.

use super::{Plan, SAMPLE_SEED, watch};
use crate::candidates::{self, Goal, Seen, Task, candidates};
use crate::choice::Choice;
use crate::cloud::{Cloud, Given};
use crate::coordinates::{self, Mapped};
use crate::decide::{self, Decision, Ends, decide};
use crate::engine::{self, Engine, Placed};
use crate::output::Output;
use crate::probe::{ProbeOutput, ProbeReport, ProbeStratum};
use crate::request::{Fmm, Method};
use crate::variant::Translation;
use crate::{rng::Rng, validate};
use fmm_dist::World;
use fmm_dist::wire::{Reader, Wire};
use fmm_traits::{Error, ErrorReport, OutputError, Targets};
use std::time::Instant;

/// The rank that decides for all.
const DECIDER: usize = 0;

/// A decision as it travels: place in the list of candidates, order, bytes; occupancy, tolerance; reason; probe.
type Told = (((u64, Option<u64>), (u64, f64)), ((Option<f64>, String), Option<ToldProbe>));
/// The report of a probe as it travels: outputs, orders; strata; numbers of targets and sources, seconds.
type ToldProbe = ((ToldOutputs, Vec<u64>), (ToldStrata, ([u64; 2], [f64; 2])));
/// Outputs of a probe: name, error, error below.
type ToldOutputs = Vec<(&'static str, (f64, Option<f64>))>;
/// Strata of a probe: name, share, leaves.
type ToldStrata = Vec<(String, (f64, u64))>;

impl Plan {
    /// Runs a step on all ranks; on one rank, just runs it.
    pub(crate) fn jointly<R>(&self, work: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
        match &self.request.world {
            Some(world) => world.together(work),
            None => work(),
        }
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

    /// A plan for the points of all ranks.
    pub(super) fn on_ranks(request: Fmm, given: Given<'_>, world: &World) -> Result<Plan, Error> {
        let start = Instant::now();
        let mut plan = world.together(|| Plan::placed_on_ranks(request, given, world))?;
        plan.seconds.plan = start.elapsed().as_secs_f64();
        Ok(plan)
    }

    fn placed_on_ranks(request: Fmm, given: Given<'_>, world: &World) -> Result<Plan, Error> {
        check(&request, &given)?;
        let kind = match given {
            Given::Host(_, Targets::Sources) => "the sources",
            Given::Host(_, Targets::Subset(_)) => "a subset of the sources",
            _ => "separate points",
        };
        let mut texts = texts(&request);
        texts.push(("the kind of targets", kind.to_string()));
        world.agree(&texts)?;
        let speeds = world.all_gather(request.speed)?;
        let request = coordinates::resolve(request, &given);
        let mapped = Mapped::of(&request, given)?;
        let given = mapped.as_ref().map_or(given, |mapped| mapped.instead_of(given));
        let dim = request.family.dim();
        let own @ [n_sources, n_targets] = given.counts(dim)?;
        let all = world.all_gather([n_sources as u64, n_targets as u64])?;
        let counts = [0, 1].map(|k| all.iter().map(|c| c[k] as usize).sum());
        let task = candidates::check(&request, counts)?;
        let pool = Plan::pool(task.threads)?;
        let Given::Host(sources, targets) = given else { return Err(refused("they take arrays of the host")) };
        let cloud = pool.install(|| Cloud::host(&task.facts, sources, targets))?;
        let seen = Seen { counts, apart: given.separate(), extent: extent(world, &cloud, dim)? };
        task.facts.check(seen.extent)?;
        let mut plan = Plan::without_engine(request, seen, pool)?;
        if counts.contains(&0) {
            plan.choice.why = "there is nothing to sum".to_string();
            plan.took(Placed::default(), own, given);
            return Ok(plan);
        }
        let r = &plan.request;
        let watch = |phase, fraction| watch(r, phase, fraction);
        let (placed, engine, choice, probe) = plan.pool.install(|| -> Result<_, Error> {
            let (choice, probe) = decided(r, &task, &cloud, seen, world, &watch)?;
            // One rank builds its tree before it knows that it must accept a larger error.
            let at_first = Choice { tolerance: task.goal.tolerance(), ..choice.clone() };
            let mut engine: Box<dyn Engine> = match choice.layout {
                candidates::Layout::Octree(parts) if choice.method != Method::Direct => {
                    Box::new(engine::Ranks::new(r, &at_first, parts, world, speeds))
                }
                _ => Box::new(engine::DirectOnRanks::new(r, &at_first, world)),
            };
            engine.place(&cloud, &watch)?;
            drop(cloud);
            Ok((engine.settle(choice.order.unwrap_or_default(), &watch)?, engine, choice, probe))
        })?;
        (plan.engine, plan.choice, plan.probe) = (Some(engine), choice, probe);
        plan.took(placed, own, given);
        Ok(plan)
    }

    /// [`Plan::verify_output`] on several ranks: the same sample, and the same numbers, as on one rank. Every rank gets
    /// all sources, and sums at its part of the sample.
    pub(super) fn verify_on_ranks(
        &self,
        world: &World,
        strengths: &[f64],
        out: &Output,
        samples: usize,
    ) -> Result<ErrorReport, Error> {
        let facts = &self.choice.facts;
        world.agree(&[("the number of samples", samples.to_string())])?;
        let own_targets = world.all_gather(self.n_targets as u64)?;
        let ends: Vec<usize> = own_targets
            .iter()
            .scan(0, |end, &n| {
                *end += n as usize;
                Some(*end)
            })
            .collect();
        let total = *ends.last().unwrap_or(&0);
        let rows = Rng::new(SAMPLE_SEED).sample(total, samples);
        let first = ends[world.rank()] - self.n_targets;
        let mine: Vec<usize> =
            rows.iter().filter(|&&i| (first..ends[world.rank()]).contains(&i)).map(|i| i - first).collect();
        let exact = match &self.engine {
            None => vec![0.0; mine.len() * facts.values],
            Some(engine) => {
                let (sources, targets) = engine.points()?;
                let n_sources = world.all_gather(self.n_sources as u64)?;
                let base: usize = n_sources[..world.rank()].iter().map(|&n| n as usize).sum();
                let all = world.all_gather(sources)?.concat();
                let strengths = world.all_gather(strengths.to_vec())?.concat();
                self.exact(&**engine, (&all, base), &strengths, &targets, &mine)?
            }
        };
        // Errors are added up in the order of the sample, as on one rank.
        let mut outputs = Vec::new();
        for c in &facts.columns {
            let k = c.columns.len();
            let [found, exact] = self.rows_of(c, out, &exact, &mine);
            let mut by_row = std::collections::HashMap::new();
            let indices: Vec<u64> = mine.iter().map(|i| (i + first) as u64).collect();
            for ((indices, found), exact) in
                world.all_gather(indices)?.iter().zip(world.all_gather(found)?).zip(world.all_gather(exact)?)
            {
                for (n, &i) in indices.iter().enumerate() {
                    by_row.insert(i as usize, (found[n * k..][..k].to_vec(), exact[n * k..][..k].to_vec()));
                }
            }
            let (computed, expected): (Vec<_>, Vec<_>) = rows.iter().filter_map(|i| by_row.get(i).cloned()).unzip();
            outputs.push(OutputError::of(c.output, &computed.concat(), &expected.concat(), k));
        }
        Ok(ErrorReport { samples: rows.len(), outputs })
    }
}

/// The error of what sums on several ranks do not have.
fn refused(reason: &str) -> Error {
    Error::Unsupported { operation: "a sum on several ranks", reason: reason.to_string() }
}

/// Refuses what sums on several ranks do not have.
fn check(r: &Fmm, given: &Given<'_>) -> Result<(), Error> {
    let refuse = |reason: &str| Err(refused(reason));
    if r.family.dim() != 3 {
        return refuse("kernels of the plane run on one rank");
    }
    if given.on_device() {
        return refuse("they take arrays of the host");
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
fn extent(world: &World, cloud: &Cloud<'_>, dim: usize) -> Result<f64, Error> {
    let (sources, targets) = cloud.on_host()?;
    let others = if let Targets::Points(t) = targets { t } else { &[][..] };
    let mine: Vec<f64> =
        [sources, others].into_iter().flat_map(|points| validate::bounds(points, dim)).flatten().flatten().collect();
    let all = world.all_gather(mine)?.concat();
    validate::extent(all.as_chunks::<3>().0.as_chunks::<2>().0.iter().copied(), dim)
}

/// The choice of method and order, as one rank with all points makes it. A named method of a given order needs no
/// points; otherwise they go to rank 0.
fn decided(
    r: &Fmm,
    task: &Task,
    cloud: &Cloud<'_>,
    seen: Seen,
    world: &World,
    watch: engine::Watch,
) -> Result<(Choice, Option<ProbeReport>), Error> {
    let candidates = candidates(r, task, seen)?;
    if let (Goal::Order(_), [_]) = (task.goal, &candidates[..]) {
        let mut choice = decide::forecast(r, seen)?;
        choice.why = "asked for".to_string();
        return Ok((choice, None));
    }
    let (sources, targets) = cloud.on_host()?;
    let (kind, apart, subset): (u8, Vec<f64>, Vec<u64>) = match targets {
        Targets::Sources => (0, Vec::new(), Vec::new()),
        Targets::Points(t) => (1, t.to_vec(), Vec::new()),
        Targets::Subset(s) => (2, Vec::new(), s.iter().map(|&i| i as u64).collect()),
    };
    let mut message = Vec::new();
    (sources.to_vec(), (apart, subset)).put(&mut message);
    let everyone: Vec<usize> = (0..world.size()).collect();
    let from = if world.rank() == DECIDER { &everyone[..] } else { &[] };
    let came = world.swap(vec![(DECIDER, message)], from)?;
    let mut told = Vec::new();
    if world.rank() == DECIDER {
        let (mut sources, mut apart, mut subset) = (Vec::new(), Vec::new(), Vec::new());
        for message in &came {
            let (s, (t, indices)): (Vec<f64>, (Vec<f64>, Vec<u64>)) = Wire::get(&mut Reader::new(message))?;
            let first = sources.len() / task.facts.dim;
            subset.extend(indices.into_iter().map(|i| first + i as usize));
            sources.extend(s);
            apart.extend(t);
        }
        let targets = match kind {
            0 => Targets::Sources,
            1 => Targets::Points(&apart),
            _ => Targets::Subset(&subset),
        };
        let alone = Fmm { world: None, ..r.clone() };
        let given = Given::Host(&sources, targets);
        let whole = Cloud::of(&alone, &task.facts, given, seen.counts)?;
        let decision = decide(&alone, task, Ends { cloud: &whole, seen }, watch)?;
        tell(&decision, &candidates)?.put(&mut told);
    }
    let sends = if world.rank() == DECIDER { everyone.iter().map(|&to| (to, told.clone())).collect() } else { vec![] };
    let told: Told = Wire::get(&mut Reader::new(&world.swap(sends, &[DECIDER])?[0]))?;
    let (((which, order), (forecast, occupancy)), ((tolerance, why), probe)) = told;
    let Some(candidate) = candidates.get(which as usize) else {
        let reason = "rank 0 decided for a method that is not known here".to_string();
        return Err(Error::Unsupported { operation: "a decision", reason });
    };
    let mut choice = Choice::of(task, candidate, order.unwrap_or_default() as usize);
    (choice.occupancy, choice.tolerance, choice.why, choice.forecast) = (occupancy, tolerance, why, forecast.into());
    Ok((choice, probe.map(probe_of)))
}

/// A decision, to be told to the other ranks.
fn tell(decision: &Decision, candidates: &[candidates::Candidate]) -> Result<Told, Error> {
    let c = &decision.choice;
    let same = |other: &candidates::Candidate| other.method == c.method && other.layout == c.layout;
    let Some(which) = candidates.iter().position(same) else {
        let reason = "the decision is none of the candidates".to_string();
        return Err(Error::Unsupported { operation: "a decision", reason });
    };
    let probe = decision.probe.as_ref().map(|p| {
        let outputs = p.outputs.iter().map(|o| (o.output, (o.error, o.below))).collect();
        let orders = p.orders.iter().map(|&o| o as u64).collect();
        let strata = p.strata.iter().map(|s| (s.name.clone(), (s.share, s.leaves as u64))).collect();
        ((outputs, orders), (strata, ([p.targets as u64, p.sources as u64], [p.seconds, p.operators])))
    });
    let order = c.order.map(|order| order as u64);
    Ok((((which as u64, order), (c.forecast.bytes, c.occupancy)), ((c.tolerance, c.why.clone()), probe)))
}

fn probe_of(((outputs, orders), (strata, ([targets, sources], [seconds, operators]))): ToldProbe) -> ProbeReport {
    let output = |(output, (error, below))| ProbeOutput { output, error, below };
    let stratum = |(name, (share, leaves)): (String, (f64, u64))| ProbeStratum { name, share, leaves: leaves as usize };
    ProbeReport {
        outputs: outputs.into_iter().map(output).collect(),
        orders: orders.into_iter().map(|o| o as usize).collect(),
        strata: strata.into_iter().map(stratum).collect(),
        targets: targets as usize,
        sources: sources as usize,
        seconds,
        operators,
        of_earlier_points: false,
    }
}
