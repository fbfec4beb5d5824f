//! The stages of the method by spherical harmonics, each over whole lists, with their times.

use super::plan::{Far, Plan, Workspace};
use super::points::{Field, Harmonics, Polynomials, Sums, Values};
use crate::elsewhere::Coming;
use crate::frame::{Fill, Frame};
use crate::lanes::{Room, dispatch};
use crate::leaves::{clear, scatter};
use crate::near::Near;
use crate::{power_of_two, ranks};
use fmm_traits::{Cube, Error, Lists, Real, Stage, StageSeconds, Stages, Step};
use rayon::prelude::*;
use std::mem::take;
use std::ops::Range;
use std::time::Instant;

/// Scratch of one thread for the coefficients of one box.
#[derive(Default)]
pub(super) struct Coefficients<T> {
    /// Moments `[strength][harmonic]`.
    moments: Vec<T>,
    /// Coefficients of a first derivative, and of a second derivative.
    derivatives: [Vec<T>; 2],
    /// Coefficients `[harmonic][value]` of the potential and its derivatives.
    field: Vec<T>,
    /// Vectors of harmonics, with points along the lanes.
    room: Room,
}

impl<T> Coefficients<T> {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let [first, second] = &self.derivatives;
        let numbers = [&self.moments, first, second, &self.field].iter().map(|v| v.capacity()).sum::<usize>();
        (numbers * size_of::<T>()) as u64 + self.room.bytes()
    }
}

/// One application of a plan.
pub(super) struct Run<'a, T: Real> {
    plan: &'a Plan<T>,
    w: Workspace<T>,
    strengths: &'a [f64],
    /// Unit of the strengths ([`Pair::unit_of`](crate::pairs::Pair::unit_of)).
    unit: f64,
    out: &'a mut [f64],
    /// The near field, while another processor sums it.
    near: Option<Coming>,
    seconds: StageSeconds,
}

impl<'a, T: Real> Run<'a, T> {
    pub fn new(plan: &'a Plan<T>, w: Workspace<T>, strengths: &'a [f64], out: &'a mut [f64]) -> Self {
        // Scatter finds the unit.
        Run { plan, w, strengths, unit: 1.0, out, near: None, seconds: StageSeconds::default() }
    }

    pub fn finish(self) -> (Workspace<T>, StageSeconds) {
        (self.w, self.seconds)
    }

    /// Runs a stage and adds its time.
    fn timed(&mut self, stage: Stage, work: impl FnOnce(&mut Self)) -> Result<(), Error> {
        self.tried(stage, |run| {
            work(run);
            Ok(())
        })
    }

    /// Runs a stage that may fail, and adds its time.
    fn tried(&mut self, stage: Stage, work: impl FnOnce(&mut Self) -> Result<(), Error>) -> Result<(), Error> {
        let start = Instant::now();
        let done = work(self);
        self.seconds[stage as usize] += start.elapsed().as_secs_f64();
        done
    }

    /// Calls `work(leaf, level, values of its targets)` for every leaf that has targets.
    fn for_each_leaf(&mut self, work: impl Fn(usize, usize, &mut [f64], &Workspace<T>) + Sync) {
        let plan = self.plan;
        let mut values = take(&mut self.w.values);
        let w = &self.w;
        plan.leaves.for_each(&plan.tree, plan.facts.near64.values(), &mut values, |leaf, level, out| {
            work(leaf, level, out, w);
        });
        self.w.values = values;
    }

    /// Begins the near field, if another processor sums it.
    fn begin_near(&mut self) -> Result<(), Error> {
        let begin = |near| Coming::begin(near, &self.w.strengths, self.plan.facts.near64.strengths());
        self.near = self.plan.elsewhere.as_ref().map(begin).transpose()?;
        Ok(())
    }

    /// P2P of some leaves, unless another processor sums the near field.
    fn near(&mut self, lists: &Lists, which: impl Fn(usize) -> bool + Sync) {
        let (plan, kernels) = (self.plan, &self.plan.facts.kernels);
        if plan.elsewhere.is_some() {
            return;
        }
        let dilated = |l: usize| kernels.parameters(plan.tree.side_at(l)).into_iter().map(T::of).collect();
        let unit: Vec<Vec<T>> = (0..plan.tree.levels()).map(dilated).collect();
        let plain = kernels.parameters(Frame::plain(&plan.tree).side);
        self.for_each_leaf(|leaf, level, out, w| {
            if !which(leaf) {
                return;
            }
            let near = Near { tree: &plan.tree, lists, strengths: &w.strengths, leaf, isa: plan.settings.isa };
            let frame = Frame::of(&plan.tree, leaf, level);
            let pools = (&plan.points, &plan.near64);
            near.add((&plan.near, &plan.facts.near64), frame, (&unit[level], &plain), pools, out);
        });
    }

    /// L2P: locals to targets, `K` values per target.
    fn locals<const K: usize>(&mut self, lists: &Lists) {
        let (plan, len) = (self.plan, self.plan.row());
        self.for_each_leaf(|leaf, level, out, w| {
            if !lists.l2p.row(leaf).is_empty() {
                plan.coefficients.with(|scratch| {
                    let Coefficients { derivatives, field, room, .. } = scratch;
                    field.resize(len * K, T::default());
                    let field = field.as_chunks_mut::<K>().0;
                    plan.derive(Harmonics::Regular, &w.locals[leaf * len..][..len], derivatives, field);
                    let fields = std::iter::once((Frame::of(&plan.tree, leaf, level), &*field));
                    plan.evaluate(Harmonics::Regular, fields, len, leaf, room, out);
                });
            }
        });
    }

    /// M2P: multipoles to targets, `K` values per target.
    fn multipoles<const K: usize>(&mut self, lists: &Lists) {
        let (plan, len, width) = (self.plan, self.plan.row(), self.plan.field());
        let far = &plan.far;
        clear(&mut self.w.fields, far.boxes.len() * width);
        let multipoles = &self.w.multipoles;
        self.w.fields.par_chunks_mut(width).zip(&far.boxes).for_each(|(to, &b)| {
            let from = &multipoles[b as usize * len..][..len];
            match &plan.horner {
                Some(horner) => horner.coefficients(from, to),
                None => plan.coefficients.with(|scratch| {
                    let field = to.as_chunks_mut::<K>().0;
                    plan.derive(Harmonics::Singular, from, &mut scratch.derivatives, field);
                }),
            }
        });
        self.for_each_leaf(|leaf, _, out, w| {
            let row = lists.m2p.starts[leaf]..lists.m2p.starts[leaf + 1];
            let edges = edges_of(far, row, &w.fields, width);
            match &plan.horner {
                Some(horner) => {
                    let (tree, isa) = (&plan.tree, plan.settings.isa);
                    let (targets, range, pair) = (&*tree.targets, tree.targets_of(leaf), &plan.facts.near64);
                    plan.near64.with(|scratch| {
                        let (block, sums) = (&mut scratch.targets, &mut scratch.sources);
                        if K == 1 {
                            Polynomials::<_, _, 1> { horner, edges, targets, range, pair, block, sums, out }.add(isa);
                        } else {
                            Polynomials::<_, _, 4> { horner, edges, targets, range, pair, block, sums, out }.add(isa);
                        }
                    });
                }
                None => {
                    // The highest derivative takes `degrees` degrees of the multipole. Lower derivatives get more.
                    let fields = edges.map(|(frame, degrees, field)| {
                        let count = (degrees + plan.facts.derivatives).pow(2);
                        (frame, &field.as_chunks::<K>().0[..count])
                    });
                    let longest = width / K;
                    plan.coefficients.with(|scratch| {
                        plan.evaluate(Harmonics::Singular, fields, longest, leaf, &mut scratch.room, out);
                    });
                }
            }
        });
    }
}

/// The frame, the number of degrees and the field (a row of `fields`) of the source of each of `edges`. This is a
/// function of its own, so that code over the iterator is compiled once and not for each number of values.
fn edges_of<'a, T>(
    far: &'a Far,
    edges: Range<usize>,
    fields: &'a [T],
    width: usize,
) -> impl Iterator<Item = (Frame, usize, &'a [T])> {
    far.edges[edges].iter().map(move |&(source, degrees)| {
        let Cube { center, side } = far.cubes[source as usize];
        (Frame { center, side }, usize::from(degrees), &fields[source as usize * width..][..width])
    })
}

impl<T: Real> Plan<T> {
    /// Adds the expansion of the sources in `ranges`, about the box with `frame`, to `to` (order² numbers).
    fn gather(
        &self,
        harmonics: Harmonics,
        frame: Frame,
        ranges: impl Iterator<Item = Range<usize>> + Clone,
        strengths: &[Vec<f64>],
        to: &mut [T],
    ) {
        let (p, layout) = (self.settings.order, self.facts.layout);
        // The field of a dipole is a derivative. P2M needs moments one degree lower, P2L one degree higher.
        let order = if layout.dipole.is_some() && harmonics == Harmonics::Singular { p + 1 } else { p };
        let (len, count) = (order * order, strengths.len());
        self.coefficients.with(|Coefficients { moments, room, .. }| {
            moments.clear();
            moments.resize(count * len, T::default());
            self.points.with(|scratch| {
                let points = &mut scratch.sources;
                let factors = &self.facts.near64.strength_factors(frame.side)[..count];
                let tree = &self.tree;
                let fill = Fill {
                    points: &tree.sources,
                    strengths,
                    factors,
                    attributes: &[],
                    frame,
                    ranges,
                    pieces: 1,
                    to: points,
                };
                dispatch(self.settings.isa, fill);
                Sums { basis: &self.basis, order, harmonics, points, room, out: moments }.add(self.settings.isa);
            });
            let row = |c: usize| &moments[c * len..(c + 1) * len];
            if let Some(c) = layout.charge {
                to.iter_mut().zip(row(c)).for_each(|(to, x)| *to += *x);
            }
            if let Some(first) = layout.dipole {
                for a in 0..3 {
                    match harmonics {
                        Harmonics::Regular => self.gradient.raise(a, p, T::of(1.0), row(first + a), to),
                        Harmonics::Singular => self.gradient.lower(a, order, T::of(-1.0), row(first + a), to),
                    }
                }
            }
        });
    }

    /// Sets `field` to the coefficients `from` of a potential and to the coefficients of its derivatives. `K` is 1 for
    /// the potential alone, 4 with the gradient and 10 with the Hessian. `work` is scratch for a first and a second
    /// derivative.
    fn derive<const K: usize>(&self, harmonics: Harmonics, from: &[T], work: &mut [Vec<T>; 2], field: &mut [[T; K]]) {
        let derive = |a: usize, from: &[T], to: &mut Vec<T>| {
            let order = from.len().isqrt();
            to.clear();
            match harmonics {
                Harmonics::Regular => {
                    to.resize(from.len(), T::default());
                    self.gradient.lower(a, order, T::of(1.0), from, to);
                }
                Harmonics::Singular => {
                    to.resize((order + 1).pow(2), T::default());
                    self.gradient.raise(a, order + 1, T::of(-1.0), from, to);
                }
            }
        };
        field.fill([T::default(); K]);
        let mut put = |k: usize, row: &[T]| field.iter_mut().zip(row).for_each(|(to, &x)| to[k] = x);
        put(0, from);
        if K > 1 {
            let [first, second] = work;
            let mut k = 4;
            for a in 0..3 {
                derive(a, from, first);
                put(1 + a, first);
                if K > 4 {
                    for b in a..3 {
                        derive(b, first, second);
                        put(k, second);
                        k += 1;
                    }
                }
            }
        }
    }

    /// Adds the values of `fields` at the targets of `leaf` to `out`. A field has at most `longest` harmonics.
    fn evaluate<'a, const K: usize>(
        &self,
        harmonics: Harmonics,
        fields: impl Iterator<Item = Field<'a, T, K>>,
        longest: usize,
        leaf: usize,
        room: &mut Room,
        out: &mut [f64],
    ) {
        self.points.with(|scratch| {
            let (basis, pair, targets) = (&self.basis, &self.facts.near64, &*self.tree.targets);
            let (range, block) = (self.tree.targets_of(leaf), &mut scratch.targets);
            let values = Values { basis, harmonics, fields, longest, targets, range, pair, block, room, out };
            values.add(self.settings.isa);
        });
    }
}

impl<T: Real> Stages for Run<'_, T> {
    type Lists = Lists;

    fn levels(&self) -> usize {
        self.plan.tree.levels()
    }

    fn order(&self) -> Vec<Step> {
        match self.plan.elsewhere {
            None => Step::near_first(self.levels()),
            Some(_) => Step::in_order(self.levels()),
        }
    }

    fn scatter(&mut self) -> Result<(), Error> {
        self.tried(Stage::Scatter, |r| {
            let (plan, tree) = (r.plan, &r.plan.tree);
            let mut largest = [plan.facts.near64.largest(r.strengths, tree.side_at(0))];
            ranks::largest(tree, &mut largest)?;
            r.unit = power_of_two(largest[0]);
            scatter(tree, &[(r.strengths, r.unit)], &plan.facts.near64, &mut r.w.strengths);
            ranks::lend(tree, &r.w.strengths)?;
            let [multipoles, locals] = plan.rows();
            clear(&mut r.w.multipoles, multipoles);
            clear(&mut r.w.locals, locals);
            clear(&mut r.w.values, tree.targets.len() * plan.facts.near64.values());
            // On ranks, strengths of ghosts come with the exchange.
            if ranks::exchange(tree).is_none() { r.begin_near() } else { Ok(()) }
        })
    }

    fn p2m(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::P2m, |r| {
            let (plan, tree, strengths) = (r.plan, &r.plan.tree, &r.w.strengths);
            r.w.multipoles.par_chunks_mut(plan.row()).enumerate().for_each(|(b, to)| {
                if !lists.p2m.row(b).is_empty() {
                    let frame = Frame::of(tree, b, tree.level_of(b));
                    plan.gather(Harmonics::Regular, frame, std::iter::once(tree.sources_of(b)), strengths, to);
                }
            });
        })
    }

    fn m2m(&mut self, lists: &Lists, level: usize) -> Result<(), Error> {
        self.timed(Stage::M2m, |r| {
            let plan = r.plan;
            if !lists.m2m.is_empty() {
                let isa = plan.settings.isa;
                plan.translations.up(&plan.tree, &lists.m2m, level, isa, &mut r.w.multipoles);
            }
        })
    }

    /// Counts as M2M, but for the near pairs that are summed meanwhile.
    fn exchange(&mut self) -> Result<(), Error> {
        let (plan, tree) = (self.plan, &self.plan.tree);
        let Some(exchange) = ranks::exchange(tree) else { return Ok(()) };
        let (mut multipoles, components) = (take(&mut self.w.multipoles), self.w.strengths.len());
        let messages = || {
            let ghosts = exchange.ghosts(components)?;
            if plan.rows()[0] > 0 {
                ranks::complete(tree, &mut multipoles, plan.row())?;
            }
            Ok(ghosts)
        };
        let start = Instant::now();
        let (ghosts, near) = ranks::beside(exchange, messages, |goes_on| {
            self.near(&plan.lists, |leaf| goes_on() && ranks::early(tree, &plan.lists, leaf));
        })?;
        self.w.multipoles = multipoles;
        ranks::put(tree.shared.as_deref(), &ghosts, &mut self.w.strengths);
        self.begin_near()?;
        if let Some(after) = ranks::after(tree) {
            for level in ranks::levels_of(tree, after) {
                plan.translations.up_after(tree, after, level, plan.settings.isa, &mut self.w.multipoles);
            }
        }
        self.seconds[Stage::P2p as usize] += near;
        self.seconds[Stage::M2m as usize] += start.elapsed().as_secs_f64() - near;
        Ok(())
    }

    fn m2l(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::M2l, |r| {
            let plan = r.plan;
            if !lists.m2l.is_empty() {
                let isa = plan.settings.isa;
                plan.translations.across(&plan.tree, &lists.m2l, isa, &r.w.multipoles, &mut r.w.locals);
            }
        })
    }

    fn p2l(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::P2l, |r| {
            let (plan, tree, strengths) = (r.plan, &r.plan.tree, &r.w.strengths);
            r.w.locals.par_chunks_mut(plan.row()).enumerate().for_each(|(b, to)| {
                if !lists.p2l.row(b).is_empty() {
                    let frame = Frame::of(tree, b, tree.level_of(b));
                    let ranges = lists.p2l.row(b).iter().map(|&s| tree.sources_of(s as usize));
                    plan.gather(Harmonics::Singular, frame, ranges, strengths, to);
                }
            });
        })
    }

    fn l2l(&mut self, lists: &Lists, level: usize) -> Result<(), Error> {
        self.timed(Stage::L2l, |r| {
            let plan = r.plan;
            if !lists.l2l.is_empty() {
                let isa = plan.settings.isa;
                plan.translations.down(&plan.tree, &lists.l2l, level, isa, &mut r.w.locals);
            }
        })
    }

    fn l2p(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::L2p, |r| match r.plan.facts.derivatives {
            _ if lists.l2p.is_empty() => {}
            0 => r.locals::<1>(lists),
            1 => r.locals::<4>(lists),
            _ => r.locals::<10>(lists),
        })
    }

    fn m2p(&mut self, lists: &Lists) -> Result<(), Error> {
        self.timed(Stage::M2p, |r| match r.plan.facts.derivatives {
            _ if lists.m2p.is_empty() => {}
            0 => r.multipoles::<1>(lists),
            1 => r.multipoles::<4>(lists),
            _ => r.multipoles::<10>(lists),
        })
    }

    fn p2p(&mut self, lists: &Lists) -> Result<(), Error> {
        if let Some(near) = self.near.take() {
            self.seconds[Stage::P2p as usize] += near.add(self.plan.facts.near64.values(), &mut self.w.values)?;
            return Ok(());
        }
        let tree = &self.plan.tree;
        self.timed(Stage::P2p, |r| r.near(lists, |leaf| !ranks::early(tree, lists, leaf)))
    }

    fn gather(&mut self) -> Result<(), Error> {
        self.timed(Stage::Gather, |r| {
            let (plan, scale) = (r.plan, r.plan.facts.kernels.scale * r.unit);
            plan.leaves.gather(&r.w.values, scale, plan.facts.near64.values(), [0, 1], r.out);
        })
    }
}
