//! The part of a plan that depends on the points but not on the expansion: tree, lists, near field, and the
//! permutations at both ends of a run.

use crate::arrange::Arranger;
use crate::device::{Arg, Buffer, Device, Functions};
use crate::ends::{Arrays, Ends, Form, Rows};
use crate::levels::Units;
use crate::lists::DeviceLists;
use crate::pieces::{self, Pieces};
use crate::primitives::Primitives;
use crate::programs::{self, Groups, NEAR_LEVELS};
use crate::ranks::{Ranks, Way};
use crate::rounds::Slots;
use crate::tasks::{self, Of, Tasks};
use crate::tree::DeviceTree;
use fmm_traits::tree::NONE;
use fmm_traits::{Error, Kernels, Precision, Real};

/// Most edges of P2P that a block sums. Leaves of uniform points have 27, most others fewer than 128 and thus one part. A
/// part of 128 leaves of 60 points each takes about 0.1 ms (by the cycles in `runs/2026-11-29-h200/uneven.txt`).
const P2P_PART: u32 = 128;
/// Most edges of M2P that a block sums. Leaves of treecodes have some 450, all about equally many, so that more parts would
/// only take memory and time (docs/notes/gpu-performance.md, Treecodes).
const M2P_PART: u32 = 512;

/// The near field of a plan: programs and units, which stay when the points change.
#[derive(Debug)]
pub(crate) struct Near {
    arrange: Functions,
    p2p: Functions,
    units: Units,
    /// Degree in length of each strength of a source.
    strengths: Vec<i32>,
    /// Attributes of a source: the last of its strengths.
    attributes: usize,
    /// Degree in length of each value of a target.
    values: Vec<i32>,
    /// Whether pairs are summed relative to the leaf, in units of its side, or relative to a smaller group of targets.
    framed: bool,
    groups: Groups,
    /// Whether a source acts on itself.
    include_self: bool,
    /// Whether any part of the plan is in f32. Strengths are then divided by the largest.
    single: bool,
}

impl Near {
    /// The near field of `kernels` in precision `N`. `single` says whether the far field is in f32.
    pub fn new<N: Real>(device: &Device, kernels: &Kernels, units: Units, single: bool) -> Result<Self, Error> {
        let kernel = &kernels.near;
        let framed = N::NAME == "f32";
        Ok(Near {
            arrange: device.fixed("arrange", programs::arrange)?,
            p2p: device.load(&programs::p2p_program::<N>(kernel))?,
            units,
            strengths: kernel.strength_degrees.clone(),
            attributes: kernel.attributes.len(),
            values: kernel.value_degrees.clone(),
            framed,
            groups: Groups::near::<N>(kernel),
            single: single || framed,
            include_self: kernels.include_self,
        })
    }
    /// Strengths of a source.
    pub fn strengths(&self) -> usize {
        self.strengths.len()
    }
    /// Values of a target.
    pub fn values(&self) -> usize {
        self.values.len()
    }
}

/// Points in their tree, with strengths and values in tree order.
#[derive(Debug)]
pub(crate) struct Base {
    pub tree: DeviceTree,
    pub lists: DeviceLists,
    /// The tree as kernels see it.
    pub boxes: Buffer<u64>,
    /// Strengths in tree order.
    pub strengths: Buffer<f64>,
    /// Values of the targets of a piece, in tree order.
    values: Buffer<f64>,
    /// Values of a target.
    width: usize,
    /// The pieces of the targets.
    pieces: Pieces,
    /// The current piece.
    piece: usize,
    /// The places of the caller's targets in tree order; `None` on several ranks and with several pieces.
    places: Option<Buffer<u32>>,
    /// Rows of `level.cuh` for P2P.
    table: Buffer<f64>,
    /// Factors that hat strengths for the root.
    factors: Buffer<f64>,
    p2p: Tasks,
    pub l2p: Tasks,
    pub m2p: Tasks,
    /// Most edges of a part, instead of [`P2P_PART`] and [`M2P_PART`].
    part: Option<u32>,
    arrange: Functions,
    /// Largest magnitude of a strength, as bits.
    largest: Buffer<u64>,
    /// The forms of the arrays of all callers in the current evaluation; empty if strengths and values are those of the
    /// points of the tree.
    forms: Vec<Form>,
}

impl Base {
    /// Allocates arrays for a tree and its lists, except for the values: [`divide`](Base::divide).
    pub fn new(near: &Near, tree: DeviceTree, lists: DeviceLists) -> Result<Self, Error> {
        let device = &tree.device.clone();
        let boxes = tree.described()?;
        let (n, targets, sides) = (tree.sources.len(), tree.wanted(), sides(&tree, NEAR_LEVELS));
        let degrees = [&near.strengths[..], &near.values[..]];
        let table =
            if near.framed { near.units.table(&sides, &degrees) } else { near.units.plain(sides.len(), &degrees) };
        let factors: Vec<f64> = near.strengths.iter().map(|&d| tree.side.powi(d)).collect();
        let functions = near.arrange.clone();
        let arranger = Arranger { tree: &tree, primitives: Primitives::new(device)?, functions, boxes: &boxes };
        let at_targets = arranger.items([&lists.p2p, &lists.l2p, &lists.m2p].map(|edges| [edges; 3]))?;
        let [p2p, l2p, m2p] = at_targets.map(|leaves| Tasks::none(device, leaves, near.groups));
        Ok(Base {
            places: None,
            strengths: device.alloc(n * near.strengths(), "strengths")?,
            values: device.alloc(0, "values")?,
            width: near.values(),
            pieces: Pieces::one(targets),
            piece: 0,
            table: device.upload(&table, "levels")?,
            factors: device.upload(&factors, "levels")?,
            largest: device.zeros(1, "largest strength")?,
            forms: Vec::new(),
            tree,
            lists,
            boxes,
            p2p: p2p?,
            l2p: l2p?,
            m2p: m2p?,
            part: None,
            arrange: near.arrange.clone(),
        })
    }

    /// Cuts the targets into pieces for whose values there is memory, or of at most `most` targets, and allocates the
    /// values of one. `later` bytes stay free for arrays that come later. On several ranks there is one piece. `far` are the
    /// groups of L2P and M2P.
    pub fn divide(&mut self, near: &Near, far: [Groups; 2], later: u64, most: Option<usize>) -> Result<(), Error> {
        let (device, m) = (self.device().clone(), self.tree.wanted().len());
        let row = self.width * size_of::<f64>();
        self.values = device.alloc(0, "values")?;
        let mut pieces = Pieces::one(self.tree.wanted());
        self.make_tasks(near, far, &pieces)?;
        let capacity = match most {
            _ if self.ranks().is_some() => m,
            Some(most) => most,
            None => pieces::capacity(&device, m, row, later)?,
        };
        if capacity < m {
            pieces = Pieces::cut(&self.arranger()?, capacity, row)?;
            self.make_tasks(near, far, &pieces)?;
        }
        let whole = pieces.count() == 1 && self.ranks().is_none();
        self.places = whole.then(|| self.tree.targets.places(&device, 0..m)).transpose()?;
        self.values = device.alloc(pieces.most() * self.width, "values")?;
        (self.pieces, self.piece) = (pieces, 0);
        Ok(())
    }

    /// Makes the tasks of P2P, L2P and M2P.
    fn make_tasks(&mut self, near: &Near, far: [Groups; 2], pieces: &Pieces) -> Result<(), Error> {
        let (primitives, functions) = (Primitives::new(self.device())?, self.arrange.clone());
        let arranger = Arranger { tree: &self.tree, primitives, functions, boxes: &self.boxes };
        let of = |edges, groups, part, sorted| Of { edges, groups, part: self.part.unwrap_or(part), sorted };
        let p2p = of(&self.lists.p2p, near.groups, P2P_PART, true);
        // A leaf receives one edge of L2P.
        let l2p = of(&self.lists.l2p, far[0], u32::MAX, false);
        let m2p = of(&self.lists.m2p, far[1], M2P_PART, false);
        let all = [(&mut self.p2p, p2p), (&mut self.l2p, l2p), (&mut self.m2p, m2p)];
        tasks::divide(all, &arranger, pieces, self.width)
    }

    /// Makes parts of at most `most` edges of the work on a leaf.
    pub fn set_part(&mut self, most: u32) {
        self.part = Some(most);
    }

    /// Number of pieces of the targets.
    pub fn pieces(&self) -> usize {
        self.pieces.count()
    }
    /// The current piece.
    pub fn piece(&self) -> usize {
        self.piece
    }
    /// Values of a target.
    pub fn width(&self) -> usize {
        self.width
    }
    /// The kernels of `arrange.cu`.
    pub fn arrange(&self) -> &Functions {
        &self.arrange
    }
    /// The first target of the current piece, and the values from this target on.
    pub fn held(&self) -> [Arg; 2] {
        [(self.pieces.targets(self.piece).start as u32).into(), (&self.values).into()]
    }

    pub fn device(&self) -> &Device {
        &self.tree.device
    }
    /// The way to the other ranks; `None` on one rank.
    pub fn ranks(&self) -> Option<&Ranks> {
        self.tree.ranks()
    }
    /// Numbers of the caller's sources and targets.
    pub fn given(&self) -> [usize; 2] {
        let of_tree = [self.tree.sources.len(), self.tree.wanted().len()];
        self.ranks().and_then(Ranks::given).unwrap_or(of_tree)
    }
    /// Sides of the boxes of each level.
    pub fn sides(&self) -> Vec<f64> {
        sides(&self.tree, 0)
    }
    /// An arranger for the edges of this tree.
    pub fn arranger(&self) -> Result<Arranger<'_>, Error> {
        let primitives = Primitives::new(self.device())?;
        Ok(Arranger { tree: &self.tree, primitives, functions: self.arrange.clone(), boxes: &self.boxes })
    }
    /// Whether there is a far field.
    pub fn far(&self) -> bool {
        let lists = &self.lists;
        let here = [&lists.p2m, &lists.l2p, &lists.m2p].into_iter().any(|edges| !edges.is_empty());
        here || self.ranks().is_some_and(Ranks::active)
    }

    /// Bytes that an evaluation of all targets at once takes beside what is held: values, arrays of the caller in f64, and on
    /// several ranks as much for messages.
    pub fn of_an_evaluation(&self) -> u64 {
        let [n, m] = self.given();
        let strengths = self.strengths.len() / self.tree.sources.len().max(1);
        let (values, arrays) = (self.tree.wanted().len() * self.width, n * strengths + m * self.width);
        let copies = if self.ranks().is_some() { 2 } else { 1 };
        ((values + copies * arrays) * size_of::<f64>()) as u64
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let places = self.places.as_ref().map_or(0, Buffer::bytes);
        let tasks: u64 = [&self.p2p, &self.l2p, &self.m2p].into_iter().map(Tasks::bytes).sum();
        self.tree.bytes() + self.lists.bytes() + self.strengths.bytes() + self.values.bytes() + tasks + places
    }

    /// The number by which strengths are divided; `None` if nothing is in f32.
    fn unit(&self, near: &Near) -> Option<&Buffer<u64>> {
        near.single.then_some(&self.largest)
    }

    /// Makes a piece the current one, and enqueues clearing its values.
    pub fn begin(&mut self, piece: usize) -> Result<(), Error> {
        self.piece = piece;
        let device = self.device().clone();
        device.clear(&mut self.values)
    }

    /// The piece behind the current one, if there is one.
    pub fn next(&self) -> Option<usize> {
        Some(self.piece + 1).filter(|&piece| piece < self.pieces.count())
    }

    /// Enqueues the copy of the caller's strengths into tree order, and begins the first piece.
    pub fn scatter(&mut self, near: &Near, ends: &Ends, arrays: &Arrays) -> Result<(), Error> {
        let device = self.device().clone();
        self.begin(0)?;
        device.clear(&mut self.largest)?;
        let (points, ranks) = (&self.tree.sources, self.tree.ranks());
        let away = ranks.filter(|ranks| ranks.given().is_some());
        let (n, width) = (self.given()[0], near.strengths());
        let linear = width - near.attributes;
        if near.single || ranks.is_some() {
            ends.largest(arrays, [n, width, linear], &self.factors, &self.largest, away.is_some())?;
        }
        if let Some(ranks) = ranks {
            ranks.bring_to_all(&self.largest, |other| ends.larger_of(other, &self.largest))?;
        }
        let (unit, to, given) = (self.unit(near), Arg::from(&self.strengths), arrays.given());
        let Some(ranks) = away else {
            let rows = Rows { from: (&points.order).into(), to: Arg::NULL, n, width };
            return ends.scatter(given, rows, linear, unit, to, true);
        };
        let forms = ranks.forms(arrays.form())?;
        let precisions: Vec<Precision> = forms.iter().map(|form| form.strengths).collect();
        let put = |rank: usize, slots: &Slots, _, message| {
            let rows = Rows { from: Arg::NULL, to: slots.arg(), n: slots.len(), width };
            ends.scatter((message, precisions[rank]), rows, linear, unit, to, false)
        };
        let keep = |from: &Slots, slots: &Slots| {
            let rows = Rows { from: from.arg(), to: slots.arg(), n: slots.len(), width };
            ends.scatter(given, rows, linear, unit, to, false)
        };
        ranks.bring((given.0, &precisions), (&self.strengths, width), &put, &keep)?;
        self.forms = forms;
        Ok(())
    }

    /// Whether a strength of any rank was not finite in the evaluation that is done.
    pub fn spoilt(&self) -> Result<bool, Error> {
        Ok(!f64::from_bits(self.device().download(&self.largest, "largest strength")?[0]).is_finite())
    }

    /// Enqueues the copy of the values of the current piece, times `scale`, from tree order into the caller's arrays.
    pub fn gather(&self, near: &Near, scale: f64, ends: &Ends, arrays: &Arrays) -> Result<(), Error> {
        let (scale, width, targets) = ((self.unit(near), scale), near.values(), self.pieces.targets(self.piece));
        let Some(ranks) = self.ranks().filter(|ranks| ranks.given().is_some()) else {
            let order = self.tree.targets.order.at(targets.start);
            let [from, to] = match &self.places {
                Some(places) => [places.into(), Arg::NULL],
                None => [Arg::NULL, order],
            };
            let held = [0u32.into(), (&self.values).into()];
            return ends.gather(arrays, Rows { from, to, n: targets.len(), width }, scale, held);
        };
        let values = self.held();
        let way = Way {
            bytes: &|[_, to], n| ends.bytes_of(&self.forms[to], n),
            pack: &|to, slots, message| {
                let rows = Rows { from: slots.arg(), to: Arg::NULL, n: slots.len(), width };
                ends.pack(&self.forms[to], rows, scale, values, message)
            },
            put: &|_, slots, _, message| ends.deliver(arrays, slots.arg(), slots.len(), message),
            keep: &|from, to| {
                let rows = Rows { from: from.arg(), to: to.arg(), n: to.len(), width };
                ends.gather(arrays, rows, scale, values)
            },
        };
        ranks.bring_back(&way)
    }

    /// Enqueues P2P of the current piece on the second stream (`beside`) or on the first.
    pub fn p2p(&self, near: &Near, beside: bool) -> Result<(), Error> {
        let tree = &self.tree;
        let first = tree.first_target().filter(|_| !near.include_self);
        let lists = &self.lists.p2p;
        let rest = [
            (&self.table).into(),
            (&lists.sources).into(),
            first.unwrap_or(NONE).into(),
            (&tree.sources.xyz).into(),
            (tree.sources.len() as u64).into(),
            (&self.strengths).into(),
            (&tree.targets.xyz).into(),
            (tree.targets.len() as u64).into(),
        ];
        // SAFETY: arguments as in p2p.cu; nothing else writes the values before the streams are joined.
        unsafe { self.p2p.sum(self, lists, (&near.p2p, "p2p"), beside, &rest) }
    }
}

/// Sides of the boxes of each level, of at least `levels` levels.
fn sides(tree: &DeviceTree, levels: usize) -> Vec<f64> {
    (0..levels.max(tree.level_start.len() - 1)).map(|l| tree.side * (-(l as f64)).exp2()).collect()
}
