//! M2M, M2L and L2L by rotations, one family per lane.
//!
//! An *anchor* is a box: the target of M2M, or the parent of the targets of M2L and L2L. Sixteen anchors are the lanes
//! of a few vectors. The sources that lie at the same place around each anchor are gathered once from their sixteen
//! rows. The gathered sources are then translated to all targets of the anchors that need them. In M2L, there are 208
//! such places, the children around a family, and a source is not adjacent to seven of the eight boxes of the family on
//! average.
//!
//! A translation is one [`Course`] for all lanes. Locals stay in cache until all sources are done. M2L may also end at
//! [`domains`](fmm_tree::domains) of children, whose locals are handed down to the children last. A lane without a
//! source carries zeros. Expansions are hatted, so lanes may lie on different levels.

use crate::lanes::{Isa, Room, Two, Vectorized, dispatch};
use crate::pool::Pool;
use fmm_kernels::spherical::Truncation;
use fmm_kernels::spherical::coaxial::Step;
use fmm_kernels::spherical::rcr::{Course, Rcr};
use fmm_kernels::spherical::shift::Shift;
use fmm_traits::tree::{Edges, NONE, Tree};
use fmm_traits::{Cube, Error, Real, Simd, SimdLane};
use fmm_tree::domains::{Covers, DOMAINS};
use rayon::prelude::*;
use std::collections::HashMap;
use std::ops::Range;

/// Anchors computed together: the lanes of the widest vector, f32 with AVX-512.
const LANES: usize = 16;
/// Children of an anchor.
const CHILDREN: usize = 8;
/// Targets of an anchor: its children, then the other domains of a family.
const SLOTS: usize = DOMAINS;
/// Places of a source around an anchor along one axis, in sides of the source.
const PLACES_PER_AXIS: i64 = 16;
/// Places along one axis before the corner of the anchor.
const PLACES_BEFORE_ANCHOR: i64 = 6;
/// Levels at which a source may lie: the level of the anchor and the levels below.
const DEPTHS: usize = 3;
/// Number of keys. A key encodes the depth and the three places of a source.
const KEYS: usize = DEPTHS * (PLACES_PER_AXIS * PLACES_PER_AXIS * PLACES_PER_AXIS) as usize;

/// One source for each lane, and the translations of these sources.
#[derive(Debug)]
struct Move {
    /// Source boxes by lane, or [`NONE`].
    sources: [u32; LANES],
    /// Translations (slot, course). The course is the key of the sources at first, later its index in [`Courses`].
    steps: Vec<(u8, u32)>,
}

/// The translations of sixteen anchors.
#[derive(Debug)]
struct Group {
    /// `targets[slot][lane]`: target boxes, or [`NONE`].
    targets: [[u32; LANES]; CHILDREN],
    moves: Vec<Move>,
    /// L2L inside a family: the slot of each domain, and translations (slot, course) to its members.
    hand_down: Vec<(u8, Vec<(u8, u32)>)>,
}

/// The edges of one step, arranged in groups of anchors.
#[derive(Debug, Default)]
pub struct Moves(Vec<Group>);

/// The courses of all steps of a tree.
#[derive(Debug)]
pub struct Courses<T> {
    rcr: Rcr<T>,
    order: usize,
    truncation: Truncation,
    all: Vec<Course<T>>,
    /// Index in `all` by (step, offset in eighths of the smaller side, square of twice the ratio target side / source
    /// side).
    known: HashMap<(Step, [i64; 3], i32), u32>,
    /// The choice of domains by source, if M2L ends at domains.
    covers: Option<Box<Covers>>,
}

impl<T: Real> Courses<T> {
    /// An empty set of courses for expansions of `order`. If `domains`, M2L ends at domains of children where the error
    /// bound allows.
    pub fn new(order: usize, truncation: Truncation, domains: bool) -> Self {
        let covers = domains.then(Box::default);
        Courses { rcr: Rcr::new(order), order, truncation, all: Vec::new(), known: HashMap::new(), covers }
    }

    /// Number of scalars in a row.
    pub fn row(&self) -> usize {
        self.order * self.order
    }

    /// The course of `step` from the source at `key` to the target in `slot`.
    fn of(&mut self, step: Step, key: usize, slot: usize) -> u32 {
        let (depth, at) = place(key);
        let side = (-(depth as f64)).exp2();
        let source = Cube { center: at.map(|x| (x as f64 + 0.5) * side), side };
        self.between(step, source, if step == Step::Up { ANCHOR_CUBE } else { self.domain(slot) })
    }

    /// The course of `step` from `source` to `target`.
    fn between(&mut self, step: Step, source: Cube, target: Cube) -> u32 {
        let half = 0.5 * source.side.min(target.side);
        let offset = std::array::from_fn(|a| (4.0 * (target.center[a] - source.center[a]) / half).round() as i64);
        let ratio = (2.0 * target.side / source.side).powi(2).round() as i32;
        *self.known.entry((step, offset, ratio)).or_insert_with(|| {
            let shift = match step {
                Step::Up => Shift::up(target, source, self.order),
                Step::Across => Shift::across(target, source, self.order, self.truncation),
                Step::Down => Shift::down(target, source, self.order),
            };
            self.all.push(self.rcr.course(step, &shift));
            self.all.len() as u32 - 1
        })
    }

    /// The cube of the domain in `slot`, in the units of [`ANCHOR_CUBE`].
    fn domain(&self, slot: usize) -> Cube {
        match self.covers.as_ref().map(|c| &c.domains()[slot]) {
            Some(domain) => Cube { center: domain.center.map(|x| 0.5 + 0.25 * x as f64), side: 0.5 * domain.side() },
            None => Cube { center: std::array::from_fn(|a| 0.25 + 0.5 * (slot >> a & 1) as f64), side: 0.5 },
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.rcr.bytes() + self.all.iter().map(Course::bytes).sum::<u64>()
    }
}

/// The cube of an anchor, in units of its side from its lowest corner.
const ANCHOR_CUBE: Cube = Cube { center: [0.5; 3], side: 1.0 };

/// The depth of a key, and its place in sides of the source.
fn place(key: usize) -> (usize, [i64; 3]) {
    let n = PLACES_PER_AXIS as usize;
    (key / (n * n * n), std::array::from_fn(|a| (key / n.pow(a as u32) % n) as i64 - PLACES_BEFORE_ANCHOR))
}

/// The key of `source` relative to `anchor`, or `None` if the source is too far away or too deep.
fn key(tree: &Tree, levels: &[u8], anchor: usize, source: usize) -> Option<usize> {
    let depth = levels[source].checked_sub(levels[anchor]).map(usize::from).filter(|&d| d < DEPTHS)?;
    (0..3).rev().try_fold(depth, |key, a| {
        let x = tree.anchor[source][a] as i64 - ((tree.anchor[anchor][a] as i64) << depth) + PLACES_BEFORE_ANCHOR;
        (0..PLACES_PER_AXIS).contains(&x).then_some(key * PLACES_PER_AXIS as usize + x as usize)
    })
}

impl Moves {
    /// Arranges the edges of `step` into the boxes `targets`, which are whole families. `levels` is the level of each
    /// box.
    ///
    /// # Errors
    /// [`Error::Edge`] if M2L has an edge that U, V, W, X lists and the 119 stencil cannot have. Both boxes must have
    /// one level, or the source half the side of the target.
    pub fn new<T: Real>(
        tree: &Tree,
        levels: &[u8],
        edges: &Edges,
        targets: Range<usize>,
        step: Step,
        courses: &mut Courses<T>,
    ) -> Result<Self, Error> {
        let anchor = |b: usize| if step == Step::Up { b as u32 } else { tree.parent[b] };
        let mut anchors: Vec<u32> = targets.clone().filter(|&b| !edges.row(b).is_empty()).map(anchor).collect();
        anchors.dedup();
        if anchors.first() == Some(&NONE) {
            return Err(Error::Edge { what: "an edge into the root".into(), target: 0, source_box: edges.row(0)[0] });
        }
        let covers = courses.covers.as_deref().filter(|_| step == Step::Across);
        let groups: Result<Vec<Group>, Error> =
            anchors.par_chunks(LANES).map(|anchors| Group::new(tree, levels, edges, anchors, step, covers)).collect();
        let mut groups = groups?;
        one_lane_each(&groups, targets)?;
        for (slot, course) in groups.iter_mut().flat_map(|g| &mut g.moves).flat_map(|m| &mut m.steps) {
            *course = courses.of(step, *course as usize, *slot as usize);
        }
        for (domain, steps) in groups.iter_mut().flat_map(|g| &mut g.hand_down) {
            for (child, course) in steps {
                let [from, to] = [*domain, *child].map(|slot| courses.domain(slot as usize));
                *course = courses.between(Step::Down, from, to);
            }
        }
        Ok(Moves(groups))
    }

    /// Translates the rows `from` and adds the results to the rows `to` of the targets. Each is a pair: the box of the
    /// first row, and the rows. Runs in the current rayon pool. The bits do not depend on the number of threads.
    pub fn add<T: Real>(
        &self,
        courses: &Courses<T>,
        isa: Isa,
        scratch: &Pool<Room>,
        from: (usize, &[T]),
        to: (usize, &mut [T]),
    ) {
        let len = courses.row();
        let rows = Rows { first: to.0, rows: to.1.len() / len, len, data: to.1.as_mut_ptr() };
        self.0.par_iter().for_each(|group| {
            scratch.with(|room| dispatch(isa, Work { courses, group, room, from, to: &rows }));
        });
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let moves = self.0.iter().flat_map(|g| &g.moves);
        (self.0.len() * size_of::<Group>()) as u64
            + moves.map(|m| (size_of::<Move>() + 8 * m.steps.len()) as u64).sum::<u64>()
    }
}

/// Checks that each target is one of `targets` and belongs to one lane only.
fn one_lane_each(groups: &[Group], targets: Range<usize>) -> Result<(), Error> {
    let mut taken = vec![false; targets.len()];
    for &target in groups.iter().flat_map(|g| g.targets.as_flattened()).filter(|t| **t != NONE) {
        let place = (target as usize).checked_sub(targets.start).and_then(|place| taken.get_mut(place));
        if place.is_none_or(|taken| std::mem::replace(taken, true)) {
            let what = "a box is a child of two boxes, or of a box of another level".into();
            return Err(Error::Edge { what, target, source_box: NONE });
        }
    }
    Ok(())
}

impl Group {
    fn new(
        tree: &Tree,
        levels: &[u8],
        edges: &Edges,
        anchors: &[u32],
        step: Step,
        covers: Option<&Covers>,
    ) -> Result<Group, Error> {
        let mut group = Group { targets: [[NONE; LANES]; CHILDREN], moves: Vec::new(), hand_down: Vec::new() };
        // Index in `group.moves` by key.
        let mut index = vec![NONE; KEYS];
        // For each move its key, and for each slot the lanes that need the source there, one bit per lane.
        let mut wanted: Vec<(usize, [u16; SLOTS])> = Vec::new();
        // For each slot, the lanes whose local is used.
        let mut live = [0u16; SLOTS];
        // Edges of one anchor: source, and slot of the target.
        let mut family: Vec<(u32, u8)> = Vec::new();
        for (lane, &anchor) in anchors.iter().enumerate() {
            let anchor = anchor as usize;
            let targets = if step == Step::Up { anchor..anchor + 1 } else { tree.children(anchor) };
            family.clear();
            for t in targets.filter(|&t| !edges.row(t).is_empty()) {
                let slot = if step == Step::Up { 0 } else { tree.octant[t] };
                group.targets[slot as usize][lane] = t as u32;
                live[slot as usize] |= 1 << lane;
                family.extend(edges.row(t).iter().map(|&s| (s, slot)));
            }
            family.sort_unstable();
            for same in family.chunk_by(|a, b| a.0 == b.0) {
                let (s, children) = (same[0].0, same.iter().fold(0u8, |set, x| set | 1 << x.1));
                let Some(key) = key(tree, levels, anchor, s as usize) else {
                    let what = "M2L by rotations takes the boxes of U, V, W, X lists and of the 119 stencil";
                    let target = group.targets[same[0].1 as usize][lane];
                    return Err(Error::Edge { what: what.into(), target, source_box: s });
                };
                if index[key] == NONE {
                    index[key] = wanted.len() as u32;
                    wanted.push((key, [0; SLOTS]));
                    group.moves.push(Move { sources: [NONE; LANES], steps: Vec::new() });
                }
                let i = index[key] as usize;
                group.moves[i].sources[lane] = s;
                let mut want = |slot: usize| wanted[i].1[slot] |= 1 << lane;
                match covers.filter(|_| place(key).0 == 1) {
                    Some(covers) => covers.of(place(key).1.map(|x| 2 * x - 1), children).for_each(&mut want),
                    None => same.iter().for_each(|x| want(x.1 as usize)),
                }
            }
        }
        if let Some(covers) = covers {
            // All anchors hand down the locals of their domains.
            live[CHILDREN..].fill(u16::MAX >> (LANES - anchors.len()));
            for (slot, domain) in covers.domains().iter().enumerate().skip(CHILDREN) {
                if wanted.iter().any(|(_, lanes)| lanes[slot] != 0) {
                    let members = (0..CHILDREN).filter(|child| domain.members >> child & 1 == 1);
                    group.hand_down.push((slot as u8, members.map(|child| (child as u8, 0)).collect()));
                }
            }
        }
        let mut moves: Vec<(usize, Move)> = Vec::new();
        for (mut this, (key, slots)) in std::mem::take(&mut group.moves).into_iter().zip(&wanted) {
            let present = this.sources.iter().enumerate().fold(0u16, |m, (i, &s)| m | u16::from(s != NONE) << i);
            for (slot, &lanes) in slots.iter().enumerate().filter(|(_, lanes)| **lanes != 0) {
                let step = (slot as u8, *key as u32);
                if present & live[slot] & !lanes == 0 {
                    this.steps.push(step);
                } else {
                    // Some lanes have a target in this slot that does not need this source.
                    let sources = std::array::from_fn(|i| if lanes >> i & 1 == 1 { this.sources[i] } else { NONE });
                    moves.push((*key, Move { sources, steps: vec![step] }));
                }
            }
            if !this.steps.is_empty() {
                moves.push((*key, this));
            }
        }
        // In the order of keys, the sum of a lane does not depend on the other lanes.
        moves.sort_by_key(|(key, _)| *key);
        group.moves = moves.into_iter().map(|(_, this)| this).collect();
        Ok(group)
    }
}

/// An array of rows shared by tasks that write different targets.
struct Rows<T> {
    /// Box of the first row.
    first: usize,
    /// Number of rows.
    rows: usize,
    /// Number of scalars in a row.
    len: usize,
    data: *mut T,
}
// SAFETY: each task writes only the rows of its own targets (argued where the pointer is used).
unsafe impl<T: Send> Sync for Rows<T> {}

/// All translations of one group, as vectorised work.
struct Work<'a, T> {
    courses: &'a Courses<T>,
    group: &'a Group,
    room: &'a mut Room,
    from: (usize, &'a [T]),
    to: &'a Rows<T>,
}

impl<T: Real> Vectorized for Work<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        // Two vectors together where LANES allows it: each entry of a matrix is loaded once for both.
        if 2 * <T::Vector<S> as SimdLane>::WIDTH <= LANES {
            self.lanes::<Two<T::Vector<S>>>();
        } else {
            self.lanes::<T::Vector<S>>();
        }
    }
}

impl<T: Real> Work<'_, T> {
    #[inline(always)]
    fn lanes<V: SimdLane<Scalar = T>>(self) {
        const { assert!(size_of::<V>() == V::WIDTH * size_of::<T>()) };
        let Work { courses, group, room, from: (first, multipoles), to } = self;
        let len = courses.row();
        let zero = V::splat(0.0);
        let slots = if group.hand_down.is_empty() { CHILDREN } else { SLOTS };
        let (from, rest) = room.filled(zero, (3 + slots) * len).split_at_mut(len);
        let (work, locals) = rest.split_at_mut(2 * len);
        for begin in (0..LANES).step_by(V::WIDTH) {
            if begin > 0 {
                locals.fill(zero);
            }
            // One loop with a single call of `add`: the compiler would not inline a second call, which would then run
            // without vectors.
            let across = group.moves.iter().map(|m| (Ok(&m.sources), &m.steps));
            let down = group.hand_down.iter().map(|(domain, steps)| (Err(*domain as usize), steps));
            for (source, steps) in across.chain(down) {
                match source {
                    Ok(sources) => {
                        let sources = &sources[begin..begin + V::WIDTH];
                        if sources.iter().all(|&s| s == NONE) {
                            continue;
                        }
                        let read = steps.iter().map(|&(_, c)| courses.all[c as usize].orders()[0]).max().unwrap_or(0);
                        let row = |s: u32| &multipoles[(s as usize - first) * len..][..read * read];
                        gather(sources, row, &mut from[..read * read]);
                    }
                    Err(domain) => from.copy_from_slice(&locals[domain * len..][..len]),
                }
                for &(slot, course) in steps {
                    let local = &mut locals[slot as usize * len..][..len];
                    courses.rcr.add(&courses.all[course as usize], from, local, work);
                }
            }
            for (local, targets) in locals.chunks_exact(len).zip(&group.targets) {
                for (lane, &target) in targets[begin..begin + V::WIDTH].iter().enumerate().filter(|(_, t)| **t != NONE)
                {
                    let row = (target as usize).checked_sub(to.first).filter(|&row| row < to.rows);
                    let row = row.unwrap_or_else(|| panic!("no row for box {target} among those of {}", to.first));
                    // SAFETY: the array has `rows` rows of `len` numbers, and `row` is one of these rows (above). Its
                    // place is therefore below the length of the array and does not wrap. A box is the target of one
                    // lane of one group (`Moves::new` refuses all else), so no other task writes this row, and this
                    // task has no other reference to the row.
                    let row = unsafe { std::slice::from_raw_parts_mut(to.data.add(row * to.len), to.len) };
                    // SAFETY: a vector is WIDTH scalars without padding (asserted).
                    let lanes = unsafe { std::slice::from_raw_parts(local.as_ptr().cast::<T>(), len * V::WIDTH) };
                    for (k, to) in row.iter_mut().enumerate() {
                        *to += lanes[k * V::WIDTH + lane];
                    }
                }
            }
        }
    }
}

/// Loads rows into lanes: `to[k]` holds entry k of every row, and zero for [`NONE`].
#[inline(always)]
fn gather<'a, T: Real, V: SimdLane<Scalar = T>>(sources: &[u32], row: impl Fn(u32) -> &'a [T], to: &mut [V]) {
    const { assert!(size_of::<V>() == V::WIDTH * size_of::<T>()) };
    let width = V::WIDTH;
    // SAFETY: a vector is WIDTH scalars without padding (asserted).
    let lanes = unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<T>(), to.len() * width) };
    for (lane, &s) in sources.iter().enumerate() {
        if s == NONE {
            lanes[lane..].iter_mut().step_by(width).for_each(|x| *x = T::default());
        } else {
            for (x, &from) in lanes[lane..].iter_mut().step_by(width).zip(row(s)) {
                *x = from;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fmm_traits::testkit::clouds::CloudKind;
    use fmm_tree::{BuildOptions, ListOptions, build, uvwx};

    /// The array begins behind the row of a target, whose place in the array would wrap around.
    #[test]
    #[should_panic(expected = "no row for box")]
    fn rows_before_the_first_are_not_written() {
        let options = BuildOptions { ncrit: Some(5), ..Default::default() };
        let tree = build(&CloudKind::Uniform.points(500, 1), None, &options).unwrap();
        let lists = uvwx(&tree, &ListOptions::default()).unwrap();
        let levels: Vec<u8> = (0..tree.len()).map(|b| tree.level_of(b) as u8).collect();
        let mut courses = Courses::<f64>::new(2, Truncation::Variable, false);
        let moves = Moves::new(&tree, &levels, &lists.m2l, 0..tree.len(), Step::Across, &mut courses).unwrap();
        let target = lists.m2l.iter().next().unwrap().0 as usize;
        let row = courses.row();
        let (from, mut to) = (vec![1.0; tree.len() * row], vec![0.0; (tree.len() - target - 1) * row]);
        moves.add(&courses, Isa::detect(), &Pool::new(Room::default), (0, &from), (target + 1, &mut to));
    }

    #[test]
    fn a_target_has_one_lane() {
        let group = |targets: &[u32]| {
            let mut group = Group { targets: [[NONE; LANES]; CHILDREN], moves: Vec::new(), hand_down: Vec::new() };
            targets.iter().enumerate().for_each(|(lane, &t)| group.targets[t as usize % CHILDREN][lane] = t);
            group
        };
        let check =
            |groups: &[&[u32]]| one_lane_each(&groups.iter().map(|targets| group(targets)).collect::<Vec<_>>(), 9..40);
        assert_eq!(check(&[&[9, 10, 17], &[39]]), Ok(()));
        for wrong in [&[&[9, 10, 17][..], &[10]][..], &[&[9, 9]], &[&[8]], &[&[40]]] {
            assert!(matches!(check(wrong), Err(Error::Edge { .. })), "{wrong:?}");
        }
    }
}
