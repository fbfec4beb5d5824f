//! Plans on several GPUs of this machine. Each GPU is a rank with a plan and a thread of its own, and holds a piece of
//! the caller's arrays.

use super::{Plan, watch};
use crate::backend::Backend;
use crate::candidates::{self, Seen};
use crate::choice::Choice;
use crate::cloud::{Cloud, Given};
use crate::decide;
use crate::engine::{self, Engine, Placed, ProbeSeconds, RanksReport, Watch};
use crate::mesh::{Edges, Mesh};
use crate::near::NearBlock;
use crate::probe::sample::Sample;
use crate::request::Fmm;
use crate::threads::Threads;
use backend_cuda::{DeviceArray, DeviceStream, DeviceSums};
use fmm_traits::{Error, Numbers, NumbersMut, Observer, OutputColumns, Solver, Stage, StageSeconds, Targets};
use std::ops::Range;
use std::panic::resume_unwind;
use std::time::Instant;

/// The plans of several GPUs.
pub(crate) struct Several {
    request: Fmm,
    choice: Choice,
    parts: Vec<Part>,
}

/// The plan of one GPU, and its piece of the caller's arrays.
struct Part {
    plan: Plan,
    piece: Piece,
}

/// A piece of the caller's arrays.
#[derive(Clone)]
struct Piece {
    sources: Range<usize>,
    targets: Rows,
}

impl Piece {
    /// Piece `k` of `pieces` of `n` sources and `m` targets.
    fn of([n, m]: [usize; 2], targets: Targets<'_>, (k, pieces): (usize, usize)) -> Piece {
        let sources = part(n, k, pieces);
        let targets = match targets {
            Targets::Sources => Rows::Range(sources.clone()),
            Targets::Points(_) => Rows::Range(part(m, k, pieces)),
            Targets::Subset(all) => Rows::Picked((0..m).filter(|&i| sources.contains(&all[i])).collect()),
        };
        Piece { sources, targets }
    }

    /// What `work` does with this piece of the points.
    fn with<R>(&self, (sources, targets): (&[f64], Targets<'_>), dim: usize, work: impl FnOnce(Given<'_>) -> R) -> R {
        let mine = rows(sources, &self.sources, dim);
        match (targets, &self.targets) {
            (Targets::Points(all), Rows::Range(range)) => {
                work(Given::Host(mine, Targets::Points(rows(all, range, dim))))
            }
            (Targets::Subset(all), Rows::Picked(some)) => {
                let local: Vec<usize> = some.iter().map(|&i| all[i] - self.sources.start).collect();
                work(Given::Host(mine, Targets::Subset(&local)))
            }
            _ => work(Given::Host(mine, Targets::Sources)),
        }
    }
}

/// Rows of an array.
#[derive(Clone)]
enum Rows {
    Range(Range<usize>),
    Picked(Vec<usize>),
}

/// Runs `work` on all items, each on a thread of its own. Ranks have errors in common, so the first counts.
fn on_threads<I: Send, R: Send>(
    items: impl IntoIterator<Item = I>,
    work: impl Fn(I) -> Result<R, Error> + Sync,
) -> Result<Vec<R>, Error> {
    let work = &work;
    let results: Vec<Result<R, Error>> = std::thread::scope(|scope| {
        let threads: Vec<_> = items.into_iter().map(|item| scope.spawn(move || work(item))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|e| resume_unwind(e))).collect()
    });
    results.into_iter().collect()
}

/// The error of a rank as that of one GPU, where it says as much: a number of the caller, in the caller's row, or what
/// does not depend on the GPU.
fn as_on_one(e: Error, piece: impl Fn(usize) -> Piece) -> Error {
    let Error::Rank { rank, error } = e else { return e };
    match *error {
        Error::NotFinite { array, row, column, value } => {
            let piece = piece(rank);
            let row = match &piece.targets {
                _ if ["sources", "strengths"].contains(&array) => piece.sources.start + row,
                Rows::Range(range) => range.start + row,
                Rows::Picked(rows) => rows[row],
            };
            Error::NotFinite { array, row, column, value }
        }
        error @ (Error::Cancelled { .. } | Error::Memory { .. } | Error::Unsupported { .. }) => error,
        error => Error::Rank { rank, error: Box::new(error) },
    }
}

/// Part `k` of `n` rows in `pieces` parts.
fn part(n: usize, k: usize, pieces: usize) -> Range<usize> {
    n * k / pieces..n * (k + 1) / pieces
}

/// Takes the first `n` numbers of `all`.
fn first<'a, T>(all: &mut &'a mut [T], n: usize) -> &'a mut [T] {
    let (head, tail) = std::mem::take(all).split_at_mut(n);
    *all = tail;
    head
}

/// The rows of `range` of an array with `width` numbers per row.
fn rows<'a>(array: &'a [f64], range: &Range<usize>, width: usize) -> &'a [f64] {
    &array[range.start * width..range.end * width]
}

impl Plan {
    /// A plan whose sums several backends, which are GPUs, share.
    pub(super) fn on_devices(request: Fmm, given: Given<'_>, backends: Vec<Backend>) -> Result<Plan, Error> {
        let start = Instant::now();
        let dim = request.family.dim();
        let counts = given.counts(dim)?;
        let task = candidates::check(&request, counts)?;
        let (sources, targets) = given.on_host()?;
        let devices = backends.len();
        let piece = |k: usize| Piece::of(counts, targets, (k, devices));
        on_threads(&backends, |backend| backend.processor().opened(&request).transpose())?;
        let ranks: Vec<_> = fmm_dist::worlds(devices).into_iter().zip(backends).enumerate().collect();
        let made = on_threads(ranks, |(k, (world, backend))| {
            let mut request = request.clone().ranks(&world);
            (request.backend, request.threads) = (backend, Some((task.threads / devices).max(1)));
            if k > 0 {
                request.watch = None;
            }
            let piece = piece(k);
            let plan = piece.with((sources, targets), dim, |given| Plan::new(request, given))?;
            Ok(Part { plan, piece })
        });
        let parts = made.map_err(|e| as_on_one(e, piece))?;
        // As the ranks have resolved it.
        let resolved = Fmm {
            backend: request.backend,
            threads: request.threads,
            watch: request.watch,
            world: None,
            ..parts[0].plan.request.clone()
        };
        let seen = Seen { counts, apart: given.separate(), extent: 0.0 };
        let choice = decide::forecast(&resolved, seen)?;
        let mut plan = Plan::without_engine(resolved, choice, Threads::new(task.threads)?);
        plan.choice.threads = task.threads;
        plan.took_parts(&parts, given, counts);
        if !counts.contains(&0) {
            let (request, choice) = (plan.request.clone(), plan.choice.clone());
            plan.engine = Some(Box::new(Several { request, choice, parts }));
        }
        plan.seconds.plan = start.elapsed().as_secs_f64();
        Ok(plan)
    }

    /// Takes choice, measurement and times of the parts.
    fn took_parts(&mut self, parts: &[Part], given: Given<'_>, counts: [usize; 2]) {
        let first = &parts[0].plan;
        let slowest = |of: fn(&Plan) -> f64| parts.iter().map(|part| of(&part.plan)).fold(0.0, f64::max);
        let seconds = crate::mesh::PlanSeconds {
            tree: slowest(|p| p.seconds.tree),
            lists: slowest(|p| p.seconds.lists),
            operators: slowest(|p| p.seconds.operators),
            ..first.seconds
        };
        self.choice = Choice { threads: self.choice.threads, ..first.choice.clone() };
        self.probe = first.probe.clone();
        self.took(Placed { report: first.report.clone(), seconds }, counts, given);
    }

    /// [`set_points`](Plan::set_points) on several GPUs.
    pub(super) fn set_on_devices(&mut self, given: Given<'_>) -> Result<(), Error> {
        let start = Instant::now();
        let dim = self.choice.facts.dim;
        let (counts, host @ (_, targets)) = (given.counts(dim)?, given.on_host()?);
        let several = self.engine.as_deref_mut().and_then(Engine::several);
        let Some(several) = several.filter(|_| !counts.contains(&0)) else { return self.plan_again(given, start) };
        let devices = several.parts.len();
        let piece = |k: usize| Piece::of(counts, targets, (k, devices));
        let moved = on_threads(several.parts.iter_mut().enumerate(), |(k, part)| {
            let piece = piece(k);
            piece.with(host, dim, |given| part.plan.set_given(given))?;
            part.piece = piece;
            Ok(())
        });
        moved.map_err(|e| as_on_one(e, piece))?;
        // The engine is put back when the plan has taken what the parts have chosen.
        let Some(mut engine) = self.engine.take() else { return Ok(()) };
        if let Some(several) = engine.several() {
            self.took_parts(&several.parts, given, counts);
            several.choice = self.choice.clone();
        }
        self.engine = Some(engine);
        self.seconds.plan = start.elapsed().as_secs_f64();
        Ok(())
    }
}

/// New points go to the parts, so that this engine never places points.
impl Engine for Several {
    fn asked(&self) -> (&Fmm, &Choice) {
        (&self.request, &self.choice)
    }
    fn reference(&self, sources: &[f64], strengths: &[f64], targets: Targets<'_>) -> Result<Vec<f64>, Error> {
        engine::of(&self.request, &self.choice).reference(sources, strengths, targets)
    }
    fn place(&mut self, _: &Cloud, _: Watch) -> Result<(), Error> {
        replaced()
    }
    fn preview(&mut self, _: usize) -> Result<Mesh, Error> {
        replaced()
    }
    fn measure(&mut self, _: usize) -> Result<(Vec<f64>, ProbeSeconds), Error> {
        replaced()
    }
    fn sample(&self) -> Option<&Sample> {
        None
    }
    fn forget(&mut self) {}
    fn settle(&mut self, _: usize, _: Watch) -> Result<Placed, Error> {
        replaced()
    }

    fn run(&self, strengths: &[&[f64]], out: &mut [&mut [f64]], _: Watch) -> Result<StageSeconds, Error> {
        let facts = &self.choice.facts;
        let (width, values) = (facts.strengths, facts.values);
        // The rows of each part, of each set: pieces of the caller's rows, or rows that are copied there.
        let mut rest: Vec<&mut [f64]> = out.iter_mut().map(|rows| &mut **rows).collect();
        let mut copied: Vec<Vec<Vec<f64>>> = Vec::new();
        for part in &self.parts {
            let n = if let Rows::Picked(some) = &part.piece.targets { some.len() * values } else { 0 };
            copied.push(vec![vec![0.0; n]; strengths.len()]);
        }
        let mut work = Vec::new();
        for (part, copied) in self.parts.iter().zip(&mut copied) {
            let rows: Vec<&mut [f64]> = match &part.piece.targets {
                Rows::Picked(_) => copied.iter_mut().map(|rows| &mut rows[..]).collect(),
                Rows::Range(range) => rest.iter_mut().map(|all| first(all, range.len() * values)).collect(),
            };
            work.push((part, rows));
        }
        let seconds = on_threads(work, |(part, mut out): (&Part, Vec<&mut [f64]>)| {
            let strengths: Vec<&[f64]> = strengths.iter().map(|q| rows(q, &part.piece.sources, width)).collect();
            let plan = &part.plan;
            plan.pool.install(|| plan.jointly(|| plan.run(&strengths, &mut out)))
        });
        let seconds = seconds.map_err(|e| self.as_on_one(e))?;
        for (part, copied) in self.parts.iter().zip(copied) {
            let Rows::Picked(some) = &part.piece.targets else { continue };
            for (from, to) in copied.iter().zip(out.iter_mut()) {
                for (&row, from) in some.iter().zip(from.chunks_exact(values)) {
                    to[row * values..][..values].copy_from_slice(from);
                }
            }
        }
        Ok(slowest(&seconds))
    }

    fn sums(&self) -> Option<&dyn DeviceSums> {
        let arrays = |part: &Part| part.plan.engine.as_ref().is_none_or(|engine| engine.sums().is_some());
        let pieces = |part: &Part| matches!(part.piece.targets, Rows::Range(_));
        self.parts.iter().all(|part| arrays(part) && pieces(part)).then_some(self)
    }

    fn several(&mut self) -> Option<&mut Several> {
        Some(self)
    }

    fn points(&self) -> Result<(Vec<f64>, Vec<f64>), Error> {
        let points = |part: &Part| {
            let engine = part.plan.engine.as_deref();
            part.plan.jointly(|| engine.map_or(Ok(Default::default()), |engine| engine.points()))
        };
        let (sources, targets): (Vec<_>, Vec<_>) = on_threads(&self.parts, points)?.into_iter().unzip();
        Ok((sources.concat(), targets.concat()))
    }

    fn mesh(&self) -> Mesh {
        let mut sum = Mesh::default();
        // Each GPU has all boxes of the tree, or those of its part.
        let whole = self.parts.iter().all(|part| part.plan.request.has_whole_trees());
        for mesh in self.engines().map(|engine| engine.mesh()) {
            sum.levels = sum.levels.max(mesh.levels);
            sum.root_side = mesh.root_side;
            (sum.boxes, sum.leaves) = match whole {
                true => (mesh.boxes, mesh.leaves),
                false => (sum.boxes + mesh.boxes, sum.leaves + mesh.leaves),
            };
            (sum.near_pairs, sum.far_points) = (sum.near_pairs + mesh.near_pairs, sum.far_points + mesh.far_points);
            let (a, b) = (sum.edges, mesh.edges);
            sum.edges = Edges {
                p2m: a.p2m + b.p2m,
                m2m: a.m2m + b.m2m,
                m2l: a.m2l + b.m2l,
                p2l: a.p2l + b.p2l,
                l2l: a.l2l + b.l2l,
                l2p: a.l2p + b.l2p,
                m2p: a.m2p + b.m2p,
                p2p: a.p2p + b.p2p,
            };
        }
        sum
    }

    fn on_devices(&self) -> Vec<RanksReport> {
        self.engines().filter_map(|engine| engine.on_ranks()).collect()
    }
    /// None: a rank does not know the numbers of the sources of others.
    fn near_field(&self) -> Box<dyn Iterator<Item = NearBlock<'_>> + '_> {
        Box::new(std::iter::empty())
    }
    fn bytes(&self) -> u64 {
        self.engines().map(|engine| engine.bytes()).sum()
    }
}

impl Several {
    /// [`as_on_one`], for these pieces.
    fn as_on_one(&self, e: Error) -> Error {
        as_on_one(e, |k| self.parts[k].piece.clone())
    }
    fn engines(&self) -> impl Iterator<Item = &dyn Engine> {
        self.parts.iter().filter_map(|part| part.plan.engine.as_deref())
    }
}

/// The seconds of each stage on its slowest GPU.
fn slowest(seconds: &[StageSeconds]) -> StageSeconds {
    std::array::from_fn(|k| seconds.iter().map(|s| s[k]).fold(0.0, f64::max))
}

impl Solver for Several {
    fn values(&self) -> usize {
        self.choice.facts.values
    }
    fn columns(&self) -> &[OutputColumns] {
        &self.choice.facts.columns
    }
    fn apply(&self, strengths: &[f64], out: &mut [f64], _: Observer) -> Result<StageSeconds, Error> {
        self.run(&[strengths], &mut [out], &|_, _| Ok(()))
    }
    fn bytes(&self) -> u64 {
        Engine::bytes(self)
    }
}

/// Sums on arrays of the host: the first rank asks the caller's own callback, so the observer is not called.
impl DeviceSums for Several {
    fn apply_numbers(&self, strengths: Numbers, values: &mut [NumbersMut], _: Observer) -> Result<StageSeconds, Error> {
        let facts = &self.choice.facts;
        let width = facts.strengths;
        let mut rest: Vec<NumbersMut> = values.iter_mut().map(whole).collect();
        let mut work = Vec::new();
        for part in &self.parts {
            let count = part.plan.n_targets;
            let pieces = rest.iter_mut().zip(&facts.columns).map(|(all, c)| cut(all, count * c.columns.len()));
            let range = part.piece.sources.start * width..part.piece.sources.end * width;
            let strengths = match strengths {
                Numbers::F32(x) => Numbers::F32(&x[range]),
                Numbers::F64(x) => Numbers::F64(&x[range]),
            };
            work.push((part, strengths, pieces.collect::<Vec<_>>()));
        }
        let seconds = on_threads(work, |(part, strengths, mut values): (&Part, Numbers, Vec<NumbersMut>)| {
            let plan = &part.plan;
            let mut observer = |stage: Stage, done: f64| watch(&plan.request, stage.name(), done).is_ok();
            plan.pool.install(|| {
                plan.jointly(|| match plan.engine.as_ref().and_then(|engine| engine.sums()) {
                    Some(sums) => sums.apply_numbers(strengths, &mut values, &mut observer),
                    None => Ok(StageSeconds::default()),
                })
            })
        });
        Ok(slowest(&seconds.map_err(|e| self.as_on_one(e))?))
    }
    fn enqueue(&self, _: &DeviceArray, _: &[DeviceArray], _: &DeviceStream) -> Result<(), Error> {
        let reason = "sums on several GPUs take arrays of the host, but those of ranks (Fmm::ranks)".to_string();
        Err(Error::Unsupported { operation: "arrays on a device", reason })
    }
    fn synchronize(&self) -> Result<(), Error> {
        Ok(())
    }
    fn points(&self) -> Result<[Vec<f64>; 2], Error> {
        Engine::points(self).map(|(sources, targets)| [sources, targets])
    }
}

/// All of the numbers, to be cut.
fn whole<'a>(all: &'a mut NumbersMut) -> NumbersMut<'a> {
    match all {
        NumbersMut::F32(x) => NumbersMut::F32(x),
        NumbersMut::F64(x) => NumbersMut::F64(x),
    }
}

/// Takes the first `n` of the numbers.
fn cut<'a>(all: &mut NumbersMut<'a>, n: usize) -> NumbersMut<'a> {
    match all {
        NumbersMut::F32(x) => NumbersMut::F32(first(x, n)),
        NumbersMut::F64(x) => NumbersMut::F64(first(x, n)),
    }
}

/// The error of a step that the parts take.
fn replaced<T>() -> Result<T, Error> {
    let reason = "new points go to the plans of the GPUs".to_string();
    Err(Error::Unsupported { operation: "new points on several GPUs", reason })
}
