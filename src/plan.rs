//! A plan: everything that depends on the points, ready for many strengths.

use crate::choose::{Choice, Seen, choose};
use crate::describe::PlanSeconds;
use crate::engine::{self, Engine, Placed, Seconds};
use crate::output::{Output, columns_of};
use crate::request::{Fmm, Method, Progress, Targets};
use crate::{rng::Rng, validate};
use fmm_traits::{Error, ErrorReport, OutputError, Outputs};
use fmm_tree::BuildReport;
use rayon::ThreadPool;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Seed of the sample of [`Plan::verify`].
const SAMPLE_SEED: u64 = 0x5EED;

/// A sum that is ready for strengths. `Plan` is `Sync`: several threads may evaluate at once.
pub struct Plan {
    pub(crate) request: Fmm,
    pub(crate) choice: Choice,
    /// None without sources or targets.
    pub(crate) engine: Option<Box<dyn Engine>>,
    pub(crate) report: BuildReport,
    pub(crate) seconds: PlanSeconds,
    pub(crate) n_sources: usize,
    pub(crate) n_targets: usize,
    /// The subset of the sources that are targets.
    subset: Option<Vec<usize>>,
    /// Whether targets are points of their own.
    separate: bool,
    pool: Arc<ThreadPool>,
    transposed: Mutex<Option<Arc<Plan>>>,
    /// The order that spherical harmonics were found to need where [`Method::Auto`] had counted on less.
    harmonics: Option<usize>,
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.describe().fmt(f)
    }
}

impl Plan {
    pub(crate) fn new(request: Fmm, sources: &[f64], targets: Targets<'_>) -> Result<Plan, Error> {
        let start = Instant::now();
        let dim = request.family.dim();
        let n_sources = validate::points("sources", sources, dim)?;
        let n_targets = count_targets(targets, n_sources, dim)?;
        let seen = seen(sources, targets, [n_sources, n_targets], dim)?;
        let choice = choose(&request, seen)?;
        fits(&request, &choice, seen.counts)?;
        let pool = rayon::ThreadPoolBuilder::new().num_threads(choice.threads).build();
        let pool = pool.map_err(|e| Error::Threads { threads: choice.threads, reason: e.to_string() })?;
        let mut plan = Plan {
            request,
            choice,
            engine: None,
            report: BuildReport::default(),
            seconds: PlanSeconds::default(),
            n_sources: 0,
            n_targets: 0,
            subset: None,
            separate: false,
            pool: Arc::new(pool),
            transposed: Mutex::new(None),
            harmonics: None,
        };
        let placed = plan.place(sources, targets, n_targets);
        if let Some(order) = plan.dear_harmonics(&placed) {
            plan.harmonics = Some(order);
            plan.choice = choose(&plan.request, Seen { harmonics: Some(order), ..seen })?;
            if plan.choice.method != Method::SphericalHarmonics {
                plan.engine = None;
                fits(&plan.request, &plan.choice, seen.counts)?;
                plan.place(sources, targets, n_targets)?;
            }
        } else {
            placed?;
        }
        plan.say(plan.choice.why.clone(), plan.choice.order);
        plan.seconds.plan = start.elapsed().as_secs_f64();
        Ok(plan)
    }

    /// The order of spherical harmonics that [`Method::Auto`] chose and the points now ask for, where it is above the typical one;
    /// one that there is not where none serves.
    fn dear_harmonics(&self, placed: &Result<(), Error>) -> Option<usize> {
        let chosen = self.request.method == Method::Auto && self.choice.method == Method::SphericalHarmonics;
        match placed {
            _ if !chosen => None,
            Err(Error::ToleranceFloor { .. }) => Some(usize::MAX),
            Err(_) => None,
            Ok(()) => self.engine.as_ref()?.order().filter(|&order| Some(order) > self.choice.order),
        }
    }

    /// Why the method is what it is: forecasts were made with `order`, of which the points may have made another.
    fn say(&mut self, mut why: String, order: Option<usize>) {
        let found = self.engine.as_ref().and_then(|e| e.order());
        if let (Method::Auto, Some(found)) = (self.request.method, found.filter(|_| found != order)) {
            why += &format!("; computed at order {found}, as the points ask");
        }
        self.choice.why = why;
    }

    /// Replaces the points; method, order, leaf capacity and operators stay where they keep the tolerance. Far more points,
    /// or targets that become points of their own, may ask for others: this is then a new plan. On an error the plan
    /// is as before.
    ///
    /// A tolerance looks at the new points each time. Of a million that takes equivalent densities with gradient 3 to 5 ms of one core, spherical
    /// harmonics 0.07 to 0.1 s (at 1e-9 up to 0.6 s; by treecode more, for its lists are longer), beside 0.2 s for tree and lists and 1.2 s and more for an evaluation. Steps of points that stay
    /// alike save it by asking for the method and order that [`Plan::describe`] names instead.
    ///
    /// # Errors
    /// As [`Fmm::plan`].
    pub fn set_points<'a>(&mut self, sources: &[f64], targets: impl Into<Targets<'a>>) -> Result<(), Error> {
        let (start, targets) = (Instant::now(), targets.into());
        let dim = self.choice.facts.dim;
        let n_sources = validate::points("sources", sources, dim)?;
        let n_targets = count_targets(targets, n_sources, dim)?;
        let seen = seen(sources, targets, [n_sources, n_targets], dim)?;
        let new = choose(&self.request, Seen { harmonics: self.harmonics, ..seen })?;
        let old = &self.choice;
        if new.layout != old.layout || new.order > old.order || new.forecast > 2 * old.forecast {
            *self = Plan::new(self.request.clone(), sources, targets)?;
            return Ok(());
        }
        match self.place(sources, targets, n_targets) {
            // No order of the method that was chosen serves these points.
            Err(Error::ToleranceFloor { .. }) if self.request.method == Method::Auto => {
                *self = Plan::new(self.request.clone(), sources, targets)?;
                return Ok(());
            }
            placed => placed?,
        }
        let kept = new.method == self.choice.method;
        self.say(if kept { new.why } else { "kept from the points before".to_string() }, new.order);
        self.seconds.plan = start.elapsed().as_secs_f64();
        Ok(())
    }

    /// Gives checked points, `n_targets` targets, to the engine, or leaves everything as it was.
    fn place(&mut self, sources: &[f64], targets: Targets<'_>, n_targets: usize) -> Result<(), Error> {
        let dim = self.choice.facts.dim;
        let n_sources = sources.len() / dim;
        let mut placed = Placed::default();
        if n_sources == 0 || n_targets == 0 {
            self.engine = None;
        } else {
            let mut fresh = None;
            let engine = match &mut self.engine {
                Some(engine) => engine,
                None => fresh.insert(engine::of(&self.request, &self.choice)),
            };
            let watch = |phase, fraction| watch(&self.request, phase, fraction);
            placed = self.pool.install(|| engine.place(sources, targets, &watch))?;
            self.engine = fresh.or(self.engine.take());
        }
        self.report = placed.report;
        self.seconds = placed.seconds;
        self.n_sources = n_sources;
        self.n_targets = n_targets;
        self.subset = if let Targets::Subset(s) = targets { Some(s.to_vec()) } else { None };
        self.separate = matches!(targets, Targets::Points(_));
        self.transposed = Mutex::new(None);
        Ok(())
    }

    /// Number of sources.
    pub fn n_sources(&self) -> usize {
        self.n_sources
    }
    /// Number of targets.
    pub fn n_targets(&self) -> usize {
        self.n_targets
    }
    /// Coordinates of a point: 3, or 2 in the plane.
    pub fn dim(&self) -> usize {
        self.choice.facts.dim
    }
    /// Numbers that each source carries.
    pub fn strengths(&self) -> usize {
        self.choice.facts.strengths
    }
    /// Components of one of the requested outputs at a target; 0 for any other.
    pub fn components(&self, output: Outputs) -> usize {
        self.choice.facts.components(output)
    }
    /// Bytes held.
    pub fn memory(&self) -> u64 {
        self.engine.as_ref().map_or(0, |e| e.bytes())
    }

    /// The sums for `strengths` (N×s).
    ///
    /// # Errors
    /// Wrong length, NaN or infinity, cancellation.
    pub fn apply(&self, strengths: &[f64]) -> Result<Output, Error> {
        let mut out = Output::default();
        self.apply_into(strengths, &mut out)?;
        Ok(out)
    }

    /// [`Plan::apply`] into buffers that are reused. On an error the outputs are as before.
    ///
    /// # Errors
    /// As [`Plan::apply`].
    pub fn apply_into(&self, strengths: &[f64], out: &mut Output) -> Result<(), Error> {
        self.apply_together(&[strengths], std::slice::from_mut(out))
    }

    /// The sums for several sets of strengths, each N×s; the same bits as one [`Plan::apply`] each. Direct sums and the method
    /// by equivalent densities on a CPU evaluate the kernel once for several sets (potentials for 8 at a time, with
    /// gradients for 4), and use as much memory for it as is there: `seconds` and `stages` of an [`Output`] are then equal
    /// shares.
    ///
    /// # Errors
    /// As [`Plan::apply`], for the first set that has one.
    pub fn apply_batch<S: AsRef<[f64]>>(&self, strengths: &[S]) -> Result<Vec<Output>, Error> {
        let (most, bytes) = self.engine.as_ref().map_or((1, 0), |e| e.together());
        let several = self.engine.as_ref().filter(|_| most > 1 && strengths.len() > 1);
        let free = several.map_or(Ok(None), |e| e.free_memory())?;
        let bytes = bytes + (16 * self.n_targets * self.choice.facts.values) as u64;
        let further = free.map_or(u64::MAX, |free| free / 2 / bytes.max(1));
        let mut all = Vec::with_capacity(strengths.len());
        for sets in strengths.chunks(1 + (most - 1).min(further as usize)) {
            let mut out = vec![Output::default(); sets.len()];
            let sets: Vec<&[f64]> = sets.iter().map(AsRef::as_ref).collect();
            self.apply_together(&sets, &mut out)?;
            all.append(&mut out);
        }
        Ok(all)
    }

    /// The sums for each of `strengths`, all at once. On an error the outputs are as before.
    fn apply_together(&self, strengths: &[&[f64]], out: &mut [Output]) -> Result<(), Error> {
        let start = Instant::now();
        let facts = &self.choice.facts;
        for q in strengths {
            validate::matrix("strengths", q, self.n_sources, facts.strengths, self.request.family.name())?;
        }
        let rows = out.iter_mut().map(|out| {
            out.raw.resize(self.n_targets * facts.values, 0.0);
            &mut out.raw[..]
        });
        let stages = self.pool.install(|| self.run(strengths, &mut rows.collect::<Vec<_>>()))?;
        self.pool.install(|| out.iter_mut().for_each(|out| out.split(facts)));
        let share = 1.0 / out.len() as f64;
        let seconds = start.elapsed().as_secs_f64() * share;
        for out in out {
            (out.stages, out.seconds) = (stages.map(|s| s * share), seconds);
        }
        Ok(())
    }

    /// Rows of kernel values for checked strengths, on the current pool; seconds per stage.
    fn run(&self, strengths: &[&[f64]], rows: &mut [&mut [f64]]) -> Result<Seconds, Error> {
        match &self.engine {
            Some(engine) => engine.run(strengths, rows, &|phase, done| watch(&self.request, phase, done)),
            None => {
                rows.iter_mut().for_each(|rows| rows.fill(0.0));
                Ok(Seconds::default())
            }
        }
    }

    /// Aᵀv for the matrix A that takes strengths to potentials; `v` is M×c, the result N×s.
    /// For kernels with K(−r) = K(r)ᵀ. The first call may plan with sources and targets exchanged.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for other kernels; else as [`Plan::apply`].
    pub fn apply_transpose(&self, v: &[f64]) -> Result<Vec<f64>, Error> {
        let kernel = self.request.family.name();
        let facts = self.request.family.facts(Outputs::POTENTIAL)?;
        if !facts.reciprocal || facts.strengths != facts.values {
            let reason = format!("K(−r) = K(r)ᵀ does not hold for kernel {kernel}");
            return Err(Error::Unsupported { operation: "apply_transpose", reason });
        }
        validate::matrix("values", v, self.n_targets, facts.values, kernel)?;
        let Some(engine) = &self.engine else { return Ok(vec![0.0; self.n_sources * facts.strengths]) };
        let mut spread = Vec::new();
        let mut v = v;
        if let Some(subset) = &self.subset {
            // The subset's rows of the matrix over all sources.
            spread.resize(self.n_sources * facts.values, 0.0);
            for (from, &i) in v.chunks_exact(facts.values).zip(subset) {
                for (k, x) in from.iter().enumerate() {
                    spread[i * facts.values + k] += x;
                }
            }
            v = &spread;
        }
        Ok(self.exchanged(engine.as_ref())?.apply(v)?.potential)
    }

    /// The plan with sources and targets exchanged, potential only.
    fn exchanged(&self, engine: &dyn Engine) -> Result<Arc<Plan>, Error> {
        let mut slot = self.transposed.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(plan) = &*slot {
            return Ok(plan.clone());
        }
        let mut request = self.request.clone().outputs(Outputs::POTENTIAL);
        request.method = self.choice.method;
        if request.method == Method::Direct {
            request.variant = Default::default();
        }
        let (sources, targets) = engine.points();
        let plan = match self.separate {
            true => Plan::new(request, &targets, Targets::Points(&sources))?,
            false => Plan::new(request, &sources, Targets::Sources)?,
        };
        let plan = Arc::new(plan);
        *slot = Some(plan.clone());
        Ok(plan)
    }

    /// The error of an evaluation for these strengths against direct summation in f64, at
    /// `samples` targets drawn at random (always the same ones).
    ///
    /// # Errors
    /// As [`Plan::apply`].
    pub fn verify(&self, strengths: &[f64], samples: usize) -> Result<ErrorReport, Error> {
        self.verify_output(strengths, &self.apply(strengths)?, samples)
    }

    /// [`Plan::verify`] for an evaluation that was made already.
    ///
    /// # Errors
    /// [`Error::Shape`] when `out` is not of this plan; else as [`Plan::apply`].
    pub fn verify_output(&self, strengths: &[f64], out: &Output, samples: usize) -> Result<ErrorReport, Error> {
        let facts = &self.choice.facts;
        let kernel = self.request.family.name();
        validate::matrix("strengths", strengths, self.n_sources, facts.strengths, kernel)?;
        for c in &facts.columns {
            let (found, expected) = (out.get(c.output).len(), self.n_targets * c.columns.len());
            if found != expected {
                let why = "the output of another plan?".to_string();
                return Err(Error::Shape { array: "output", found, expected, why });
            }
        }
        let rows = Rng::new(SAMPLE_SEED).sample(self.n_targets, samples);
        let direct = match &self.engine {
            None => vec![0.0; rows.len() * facts.values],
            Some(engine) => {
                let ((sources, targets), dim) = (engine.points(), facts.dim);
                let indices: Vec<usize> = rows.iter().map(|&i| self.subset.as_ref().map_or(i, |s| s[i])).collect();
                let apart: Vec<f64>;
                let chosen = if self.separate {
                    apart = rows.iter().flat_map(|&i| &targets[dim * i..dim * (i + 1)]).copied().collect();
                    Targets::Points(&apart)
                } else {
                    Targets::Subset(&indices)
                };
                self.pool.install(|| engine.reference(&sources, strengths, chosen))?
            }
        };
        let mut outputs = Vec::new();
        for c in &facts.columns {
            let k = c.columns.len();
            let computed: Vec<f64> =
                rows.iter().flat_map(|&i| out.get(c.output)[i * k..(i + 1) * k].iter().copied()).collect();
            let mut expected = Vec::new();
            columns_of(&direct, facts.values, &c.columns, &mut expected);
            outputs.push(OutputError::of(c.output, &computed, &expected, k));
        }
        Ok(ErrorReport { samples: rows.len(), outputs })
    }
}

/// What is to be known of checked points.
fn seen(sources: &[f64], targets: Targets<'_>, counts: [usize; 2], dim: usize) -> Result<Seen, Error> {
    let (apart, others) = if let Targets::Points(t) = targets { (true, t) } else { (false, &[][..]) };
    Ok(Seen { counts, apart, extent: validate::extent(sources, others, dim)?, harmonics: None })
}

/// Refuses a plan that does not fit into memory.
fn fits(request: &Fmm, choice: &Choice, [n_sources, n_targets]: [usize; 2]) -> Result<(), Error> {
    match engine::of(request, choice).free_memory()? {
        Some(available) if choice.forecast > available => {
            let what = format!("{n_sources} sources and {n_targets} targets");
            Err(Error::Memory { needed: choice.forecast, available, what })
        }
        _ => Ok(()),
    }
}

/// Number of targets; checks their points or indices.
fn count_targets(targets: Targets<'_>, n_sources: usize, dim: usize) -> Result<usize, Error> {
    match targets {
        Targets::Sources => Ok(n_sources),
        Targets::Points(t) => validate::points("targets", t, dim),
        Targets::Subset(s) => match s.iter().find(|&&i| i >= n_sources) {
            Some(&i) => Err(Error::TooMany { what: "index of a target", found: i, limit: n_sources.saturating_sub(1) }),
            None => Ok(s.len()),
        },
    }
}

/// Tells the caller what comes next.
fn watch(request: &Fmm, phase: &'static str, fraction: f64) -> Result<(), Error> {
    match &request.watch {
        Some(watch) if !watch(Progress { phase, fraction }) => Err(Error::Cancelled { stage: phase }),
        _ => Ok(()),
    }
}
