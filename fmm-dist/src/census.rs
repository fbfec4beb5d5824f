//! What ranks would exchange, counted from the tree of one rank, without ranks.
//!
//! The tree of all ranks is the tree of one rank, box for box. So one machine that has this tree knows which boxes each
//! rank owns and reads, and what each [`Strategy`] sends in an evaluation. Memory grows with the boxes and with what
//! ranks read, not with the square of the ranks; ranks that are threads ([`threads`](crate::threads())) hold the coarse
//! tree once each, and tell each other their counts.
//!
//! A rank is in a box if it owns sources there. Leaves of the coarse tree go to ranks in Morton order, so these ranks
//! follow each other. A box is *cut* if it has sources of several ranks.

use crate::coarse::{LEAVES_PER_RANK, better_owners, boxes_of_leaves, by_points, imbalance, owners};
use crate::exchange::Strategy;
use crate::simulate::{LogGp, Replay, send};
use fmm_traits::tree::{NONE, Tree};
use fmm_traits::{Error, Lists};

/// The tree of one rank, shared out among several.
#[derive(Debug)]
pub struct Census {
    ranks: usize,
    /// First and last rank with sources in each box; the first is above the last in boxes without sources.
    inside: Vec<[u32; 2]>,
    /// Whether a rank owns sources.
    owns: Vec<bool>,
    /// For each rank, the boxes whose multipoles it reads and of which other ranks have parts, ascending.
    reads: Vec<Vec<u32>>,
    /// For each rank, the sources that it reads of each other rank, by ascending rank.
    ghosts: Vec<Vec<(u32, usize)>>,
    /// The ranks that read each box, as far as `reads` says.
    readers: Rows,
    /// The parent, and the children, of each box.
    parent: Vec<u32>,
    children: Vec<[u32; 2]>,
    /// Work of each rank.
    pub work: Vec<f64>,
    /// Largest over mean work of a rank.
    pub imbalance: f64,
    /// The same if leaves are shared out by points; `None` if they are.
    pub imbalance_by_points: Option<f64>,
    /// The deepest level with a cut box, if there is one.
    pub critical_level: Option<usize>,
}

/// The boxes that a rank knows, by kind (Hu, Gumerov & Duraiswami 2012, §III-A, for a partition that has no one level).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kinds {
    /// Boxes with sources of this rank alone, which no other rank reads.
    pub domestic: usize,
    /// The same, read by another rank.
    pub export: usize,
    /// Boxes of other ranks that this rank reads.
    pub import: usize,
    /// Cut boxes with sources of this rank that some rank reads.
    pub root: usize,
    /// Other cut boxes with sources of this rank.
    pub other: usize,
}

/// Numbers in rows.
#[derive(Debug)]
struct Rows {
    starts: Vec<usize>,
    data: Vec<u32>,
}

impl Rows {
    /// For each of `n` numbers, the rows in which it is, ascending.
    fn transposed(n: usize, rows: &[Vec<u32>]) -> Rows {
        let mut starts = vec![0; n + 1];
        rows.iter().flatten().for_each(|&x| starts[x as usize + 1] += 1);
        (0..n).for_each(|x| starts[x + 1] += starts[x]);
        let (mut next, mut data) = (starts.clone(), vec![0; starts[n]]);
        for (row, numbers) in rows.iter().enumerate() {
            for &x in numbers {
                data[next[x as usize]] = row as u32;
                next[x as usize] += 1;
            }
        }
        Rows { starts, data }
    }
    fn of(&self, x: u32) -> &[u32] {
        &self.data[self.starts[x as usize]..self.starts[x as usize + 1]]
    }
}

/// The leaves of the coarse tree of `ranks`, in Morton order.
fn coarse_leaves(tree: &Tree, ranks: usize, capacity: usize) -> Vec<u32> {
    let most = tree.sources.len().max(tree.targets.len());
    let threshold = (most / (LEAVES_PER_RANK * ranks)).max(capacity);
    let (mut leaves, mut stack) = (Vec::new(), vec![0u32]);
    while let Some(b) = stack.pop() {
        let count = tree.sources_of(b as usize).len().max(tree.targets_of(b as usize).len());
        if tree.is_leaf(b as usize) || count <= threshold {
            leaves.push(b);
        } else {
            stack.extend(tree.children(b as usize).rev().map(|c| c as u32));
        }
    }
    leaves
}

impl Census {
    /// Shares out `tree` with its `lists` among `ranks`, at least one, as [`place`](crate::place()) does. The coarse
    /// tree splits boxes with more points than [`capacity`](crate::coarse_capacity). `work` is the work of some boxes.
    /// Leaves are shared out by their points, or by their work if that is clearly better balanced.
    pub fn new(tree: &Tree, lists: &Lists, [ranks, capacity]: [usize; 2], work: &dyn Fn(&[u32]) -> f64) -> Census {
        let n = tree.len();
        let leaves = if n > 0 { coarse_leaves(tree, ranks, capacity) } else { Vec::new() };
        let mut leaf_of = vec![NONE; n];
        leaves.iter().enumerate().for_each(|(k, &b)| leaf_of[b as usize] = k as u32);
        let boxes = boxes_of_leaves(&tree.parent, &mut leaf_of, leaves.len());
        let points = |&b: &u32| by_points(tree.sources_of(b as usize).len(), tree.targets_of(b as usize).len());
        let works: Vec<f64> = boxes.iter().map(|boxes| work(boxes)).collect();
        let speeds = vec![1.0; ranks];
        let by_points = owners(&leaves.iter().map(points).collect::<Vec<_>>(), &speeds);
        let by_work = better_owners(&works, &by_points, &speeds);
        let before = by_work.is_some().then(|| imbalance(&works, &by_points, &speeds));
        let owner = by_work.unwrap_or(by_points);
        let mut work_of = vec![0.0; ranks];
        works.iter().zip(&owner).for_each(|(work, &rank)| work_of[rank as usize] += work);

        // Boxes come level by level, parents first.
        let nowhere = [u32::MAX, 0];
        let (mut inside, mut receiving) = (vec![nowhere; n], vec![nowhere; n]);
        let mut owns = vec![false; ranks];
        for b in (0..n).rev() {
            if leaf_of[b] != NONE {
                let rank = owner[leaf_of[b] as usize];
                if !tree.sources_of(b).is_empty() {
                    (inside[b], owns[rank as usize]) = ([rank; 2], true);
                }
                if !tree.targets_of(b).is_empty() {
                    receiving[b] = [rank; 2];
                }
                continue;
            }
            for c in tree.children(b) {
                for set in [&mut inside, &mut receiving] {
                    set[b] = [set[b][0].min(set[c][0]), set[b][1].max(set[c][1])];
                }
            }
        }
        let deepest = (0..n).rev().find(|&b| inside[b][0] < inside[b][1]);
        let mut own = vec![Vec::new(); ranks];
        for b in (0..n).filter(|&b| receiving[b][0] == receiving[b][1]) {
            own[receiving[b][0] as usize].push(b as u32);
        }
        let mut census = Census {
            ranks,
            inside,
            owns,
            reads: Vec::new(),
            ghosts: Vec::new(),
            readers: Rows { starts: vec![0; n + 1], data: Vec::new() },
            parent: tree.parent.clone(),
            children: (0..n).map(|b| [tree.children(b).start as u32, tree.children(b).end as u32]).collect(),
            work: work_of,
            imbalance: imbalance(&works, &owner, &speeds),
            imbalance_by_points: before,
            critical_level: deepest.map(|b| tree.level_of(b)),
        };
        // The rank for which a box was seen last: as a target, as a multipole, and as a ghost.
        let mut seen = [vec![NONE; n], vec![NONE; n], vec![NONE; n]];
        for (rank, boxes) in own.iter().enumerate() {
            census.look(tree, lists, rank as u32, boxes, &mut seen);
        }
        census.readers = Rows::transposed(n, &census.reads);
        census
    }

    /// What `rank` reads, whose targets are in the boxes `own` and in the boxes above.
    fn look(&mut self, tree: &Tree, lists: &Lists, rank: u32, own: &[u32], seen: &mut [Vec<u32>; 3]) {
        let [targets, multipoles, points] = seen;
        let first = |seen: &mut Vec<u32>, b: u32| std::mem::replace(&mut seen[b as usize], rank) != rank;
        let (mut reads, mut from) = (Vec::new(), std::collections::BTreeMap::<u32, usize>::new());
        for &b in own {
            let mut b = b;
            while b != NONE && first(targets, b) {
                let (m2l, m2p) = (lists.m2l.row(b as usize), lists.m2p.row(b as usize));
                for &s in m2l.iter().chain(m2p) {
                    let [low, high] = self.inside[s as usize];
                    if low <= high && [low, high] != [rank; 2] && first(multipoles, s) {
                        reads.push(s);
                    }
                }
                for &s in lists.p2p.row(b as usize).iter().chain(lists.p2l.row(b as usize)) {
                    let [owner, _] = self.inside[s as usize];
                    if owner != rank && owner != u32::MAX && first(points, s) {
                        *from.entry(owner).or_default() += tree.sources_of(s as usize).len();
                    }
                }
                b = self.parent[b as usize];
            }
        }
        reads.sort_unstable();
        self.reads.push(reads);
        self.ghosts.push(from.into_iter().collect());
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Number of sources of other ranks that each rank sums point by point.
    pub fn ghosts(&self) -> Vec<usize> {
        self.ghosts.iter().map(|from| from.iter().map(|f| f.1).sum()).collect()
    }

    /// The ranks in a box.
    fn contributors(&self, b: u32) -> impl Iterator<Item = u32> + '_ {
        let [low, high] = self.inside[b as usize];
        (low..high.wrapping_add(1).max(low)).filter(|&r| self.owns[r as usize])
    }

    fn is_cut(&self, b: u32) -> bool {
        let [low, high] = self.inside[b as usize];
        low < high
    }

    /// The boxes that each rank knows, by kind.
    pub fn kinds(&self) -> Vec<Kinds> {
        let mut kinds = vec![Kinds::default(); self.ranks];
        for b in (0..self.inside.len() as u32).filter(|&b| self.inside[b as usize][0] != u32::MAX) {
            let read = !self.readers.of(b).is_empty();
            for rank in self.contributors(b) {
                let of = &mut kinds[rank as usize];
                *match (self.is_cut(b), read) {
                    (false, false) => &mut of.domestic,
                    (false, true) => &mut of.export,
                    (true, true) => &mut of.root,
                    (true, false) => &mut of.other,
                } += 1;
            }
        }
        for (rank, reads) in self.reads.iter().enumerate() {
            let inside =
                |b: &&u32| (self.inside[**b as usize][0]..=self.inside[**b as usize][1]).contains(&(rank as u32));
            kinds[rank].import = reads.len() - reads.iter().filter(inside).count();
        }
        kinds
    }

    /// The rounds of `strategy`: for each rank the multipoles that it sends to other ranks, by ascending rank.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for the frontier above [`FRONTIER_RANKS`] ranks, where each rank reads most of the
    /// frontier, and for the hypercube if the number of ranks is not a power of two.
    fn rounds(&self, strategy: Strategy) -> Result<Vec<Round<'_>>, Error> {
        let refuse = |reason: String| Err(Error::Unsupported { operation: "counting an exchange", reason });
        Ok(match strategy {
            Strategy::Direct => vec![Box::new(|rank| self.parts_of(rank))],
            Strategy::Frontier if self.ranks > FRONTIER_RANKS => {
                return refuse(format!("the frontier is counted for up to {FRONTIER_RANKS} ranks"));
            }
            Strategy::Frontier => {
                let whole: Vec<Vec<u32>> = (0..self.ranks).map(|rank| self.frontier_of(rank as u32)).collect();
                let readers = Rows::transposed(self.inside.len(), &whole);
                let mut sends = vec![Vec::new(); self.ranks];
                for b in 0..self.inside.len() as u32 {
                    let to = &mut sends[self.inside[b as usize][1] as usize];
                    to.extend_from_slice(readers.of(b));
                }
                let sends: Vec<Vec<(u32, usize)>> = sends.into_iter().map(counted).collect();
                vec![Box::new(move |rank| sends[rank].clone())]
            }
            Strategy::Manager => {
                let to_manager = |rank: usize| if rank == 0 { Vec::new() } else { some(0, self.given(rank as u32)) };
                let back = |rank: usize| {
                    let all = 1..self.ranks as u32;
                    if rank == 0 {
                        all.flat_map(|r| some(r, self.reads[r as usize].len())).collect()
                    } else {
                        Vec::new()
                    }
                };
                vec![Box::new(to_manager), Box::new(back)]
            }
            Strategy::Hypercube if !self.ranks.is_power_of_two() => {
                return refuse(format!("a hypercube is counted for powers of two, not for {} ranks", self.ranks));
            }
            Strategy::Hypercube => {
                let counts = self.hypercube();
                let along = |(bit, counts): (usize, Vec<usize>)| -> Round<'_> {
                    Box::new(move |rank| some((rank ^ (1 << bit)) as u32, counts[rank]))
                };
                counts.into_iter().enumerate().rev().map(along).collect()
            }
        })
    }

    /// The parts of multipoles that a rank sends straight to their readers.
    fn parts_of(&self, rank: usize) -> Vec<(u32, usize)> {
        let mut to = Vec::new();
        self.for_own(rank as u32, |b| to.extend(self.readers.of(b).iter().filter(|&&r| r != rank as u32)));
        counted(to)
    }

    /// Calls `visit` for the read boxes in which a rank is.
    fn for_own(&self, rank: u32, mut visit: impl FnMut(u32)) {
        // Boxes in which a rank is have a parent in which the rank is.
        let mut stack = vec![0u32];
        while let Some(b) = stack.pop() {
            let [low, high] = self.inside.get(b as usize).copied().unwrap_or([u32::MAX, 0]);
            if !(low..=high).contains(&rank) {
                continue;
            }
            if !self.readers.of(b).is_empty() {
                visit(b);
            }
            let [from, to] = self.children[b as usize];
            stack.extend(from..to);
        }
    }

    /// The multipoles that a rank gives to a manager: parts of what others read, and of what it reads itself.
    fn given(&self, rank: u32) -> usize {
        let mut count = 0;
        self.for_own(rank, |b| {
            let readers = self.readers.of(b);
            count += usize::from(readers.len() > 1 || readers[0] != rank || self.is_cut(b));
        });
        count
    }

    /// The complete boxes of other ranks that a rank needs for what it reads.
    fn frontier_of(&self, rank: u32) -> Vec<u32> {
        let (mut whole, mut stack) = (Vec::new(), self.reads[rank as usize].clone());
        let mut seen = std::collections::HashSet::new();
        while let Some(b) = stack.pop() {
            let [low, high] = self.inside[b as usize];
            if low > high || [low, high] == [rank; 2] || !seen.insert(b) {
                continue;
            }
            if low == high {
                whole.push(b);
            } else {
                let [from, to] = self.children[b as usize];
                stack.extend(from..to);
            }
        }
        whole.sort_unstable();
        whole
    }

    /// For each bit, the multipoles that each rank sends along it. A part that starts on rank c and ends on rank r is,
    /// before the round of bit k, on the rank with the upper bits of r and the lower bits of c; parts of one box are
    /// added up.
    fn hypercube(&self) -> Vec<Vec<usize>> {
        let bits = self.ranks.ilog2() as usize;
        let mut counts = vec![vec![0; self.ranks]; bits];
        for b in (0..self.inside.len() as u32).filter(|&b| !self.readers.of(b).is_empty()) {
            let from: Vec<u32> = self.contributors(b).collect();
            for (bit, counts) in counts.iter_mut().enumerate() {
                let side = |upper: u32| -> Vec<u32> {
                    let mut low: Vec<u32> =
                        from.iter().filter(|&c| c >> bit & 1 == upper).map(|c| c & ((1 << bit) - 1)).collect();
                    low.sort_unstable();
                    low.dedup();
                    low
                };
                let sides = [side(0), side(1)];
                let mut goals: Vec<u32> = self.readers.of(b).iter().map(|r| r >> bit).collect();
                goals.dedup();
                for goal in goals {
                    let here = goal ^ 1;
                    sides[here as usize & 1].iter().for_each(|low| counts[(here << bit | low) as usize] += 1);
                }
            }
        }
        counts
    }

    /// Multipoles that each rank sends with `strategy`, and the messages with multipoles.
    ///
    /// # Errors
    /// As [`replay`](Self::replay).
    pub fn rows(&self, strategy: Strategy) -> Result<Vec<[usize; 2]>, Error> {
        let rounds = self.rounds(strategy)?;
        let of = |rank| {
            let sends = rounds.iter().flat_map(|round| round(rank));
            sends.fold([0, 0], |[rows, messages], (_, count)| [rows + count, messages + 1])
        };
        Ok((0..self.ranks).map(of).collect())
    }

    /// What the exchange of one evaluation with `strategy` costs on a network: strengths of ghosts of `strength` bytes,
    /// then multipoles of `row` bytes. Agreements are left out, and the ways from the caller's points to their owners
    /// and back.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for the frontier above [`FRONTIER_RANKS`] ranks, and for the hypercube if the number of
    /// ranks is not a power of two.
    pub fn replay(&self, strategy: Strategy, [row, strength]: [usize; 2], network: &LogGp) -> Result<Replay, Error> {
        let mut ghosts = vec![Vec::new(); self.ranks];
        for (reader, from) in self.ghosts.iter().enumerate() {
            from.iter().for_each(|&(owner, count)| ghosts[owner as usize].push((reader as u32, count)));
        }
        let ghosts: Round<'_> = Box::new(move |rank| ghosts[rank].clone());
        let rounds = self.rounds(strategy)?.into_iter().map(|round| (round, row));
        let mut found = Replay::default();
        let mut free = vec![[0.0; 2]; self.ranks];
        let (mut messages, mut bytes) = (vec![0; self.ranks], vec![0; self.ranks]);
        for (round, size) in std::iter::once((ghosts, strength)).chain(rounds) {
            send(&mut free, network, |rank| {
                // With the last byte of each message, which says what it is.
                round(rank).into_iter().map(|(to, count)| (to as usize, count * size + 1)).collect()
            });
            for rank in 0..self.ranks {
                let sends = round(rank);
                messages[rank] += sends.len();
                bytes[rank] += sends.iter().map(|s| s.1 * size + 1).sum::<usize>();
            }
        }
        found.seconds = free.into_iter().map(|f| f[0]).fold(0.0, f64::max);
        found.messages = messages.into_iter().max().unwrap_or(0);
        found.bytes = bytes.into_iter().max().unwrap_or(0);
        Ok(found)
    }
}

/// Largest number of ranks for which the frontier is counted. The frontier is the default up to 256 ranks.
pub const FRONTIER_RANKS: usize = 1024;

/// One round of messages: for a rank, the receivers with the numbers of rows for them.
type Round<'a> = Box<dyn Fn(usize) -> Vec<(u32, usize)> + 'a>;

/// A message of `count` rows, or none without rows.
fn some(to: u32, count: usize) -> Vec<(u32, usize)> {
    if count > 0 { vec![(to, count)] } else { Vec::new() }
}

/// How often each number occurs, ascending.
fn counted(mut numbers: Vec<u32>) -> Vec<(u32, usize)> {
    numbers.sort_unstable();
    numbers.chunk_by(|a, b| a == b).map(|same| (same[0], same.len())).collect()
}
