//! Every stage for *any* [`Expansion`], one operator call per edge, rayon over target boxes.
//!
//! The expansion has no type here, so that the stages are compiled once for all expansions. No batching and no SIMD:
//! the plain form of the method, against which batched stages are tested, and the bed of research variants. Any list
//! policy whose edges the expansion admits.

use fmm_traits::tree::{Edges, Hierarchy, Lists, NONE};
use fmm_traits::{Cloud, Cube, Error, Expansion, Observer, Real, Stages, evaluate};
use rayon::prelude::*;
use std::ops::Range;

/// A tree, its lists, an expansion, and the arrays between the stages.
pub struct Pairwise<'a, H, T: Real> {
    tree: &'a H,
    lists: &'a Lists,
    arrays: Arrays<'a, H, T>,
}

/// What the stages work on.
struct Arrays<'a, H, T> {
    tree: &'a H,
    expansion: &'a dyn Expansion<T>,
    /// Cube of each box.
    cubes: Vec<Cube>,
    /// Leaves with targets, by first target.
    leaves: Vec<u32>,
    sources: Vec<[f64; 3]>,
    targets: Vec<[f64; 3]>,
    /// User order.
    input: Vec<f64>,
    output: Vec<f64>,
    /// Tree order.
    strengths: Vec<T>,
    values: Vec<T>,
    multipoles: Vec<T>,
    locals: Vec<T>,
}

impl<'a, H: Hierarchy, T: Real> Pairwise<'a, H, T> {
    /// Checks that `expansion` admits the M2L, P2L and M2P edges of `lists`, and that the lists have
    /// the form the stages rely on: P2M and L2P of a box itself, M2M and L2L between a box and
    /// its children.
    ///
    /// # Errors
    /// [`Error::Edge`] with the first edge refused.
    pub fn new(tree: &'a H, lists: &'a Lists, expansion: &'a dyn Expansion<T>) -> Result<Self, Error> {
        let cubes: Vec<Cube> = (0..tree.levels()).flat_map(|l| tree.level(l).map(move |b| tree.cube(b, l))).collect();
        check(tree, lists, expansion, &cubes)?;
        let (sources, targets) = (tree.source_order().len(), tree.target_order().len());
        let mut leaves: Vec<u32> = (0..tree.boxes() as u32).filter(|&b| tree.is_leaf(b as usize)).collect();
        leaves.retain(|&b| !tree.targets_of(b as usize).is_empty());
        leaves.sort_unstable_by_key(|&b| tree.targets_of(b as usize).start);
        let zeros = |n: usize| vec![T::default(); n];
        let arrays = Arrays {
            tree,
            expansion,
            cubes,
            leaves,
            sources: (0..sources).map(|i| tree.source(i)).collect(),
            targets: (0..targets).map(|i| tree.target(i)).collect(),
            input: Vec::new(),
            output: vec![0.0; targets * expansion.values()],
            strengths: zeros(sources * expansion.strengths()),
            values: zeros(targets * expansion.values()),
            multipoles: zeros(tree.boxes() * expansion.multipole_len()),
            locals: zeros(tree.boxes() * expansion.local_len()),
        };
        Ok(Pairwise { tree, lists, arrays })
    }

    /// One evaluation: `strengths` N×strengths in user order → values M×values in user order.
    ///
    /// # Errors
    /// [`Error::Shape`] when the number of strengths does not fit; [`Error::Cancelled`].
    pub fn apply(&mut self, strengths: &[f64], observer: Observer) -> Result<Vec<f64>, Error> {
        let expected = self.arrays.strengths.len();
        if strengths.len() != expected {
            let why = format!("{} sources", self.tree.source_order().len());
            return Err(Error::Shape { array: "strengths", found: strengths.len(), expected, why });
        }
        self.arrays.input = strengths.to_vec();
        evaluate(&mut self.arrays, self.lists, observer)?;
        Ok(self.arrays.output.clone())
    }
}

fn check<T: Real>(
    tree: &impl Hierarchy,
    lists: &Lists,
    expansion: &dyn Expansion<T>,
    cubes: &[Cube],
) -> Result<(), Error> {
    let parent = |b: u32| tree.parent(b as usize);
    let refused = |what: &str, edge: Option<(u32, u32)>| match edge {
        Some((target, source_box)) => Err(Error::Edge { what: what.into(), target, source_box }),
        None => Ok(()),
    };
    let inadmissible = |e: &Edges, valid: &dyn Fn(Cube, Cube) -> bool| {
        e.iter().find(|&(t, s)| !valid(cubes[t as usize], cubes[s as usize]))
    };
    refused("multipole not valid in the target box", inadmissible(&lists.m2p, &|t, s| expansion.admissible(t, s)))?;
    refused("boxes too near for M2L", inadmissible(&lists.m2l, &|t, s| expansion.admissible_m2l(t, s)))?;
    refused("sources too near for P2L", inadmissible(&lists.p2l, &|t, s| expansion.admissible_p2l(t, s)))?;
    for e in [&lists.p2m, &lists.l2p] {
        let leaf = |b: u32| tree.is_leaf(b as usize);
        refused("P2M or L2P edge is not (leaf, same leaf)", e.iter().find(|&(t, s)| t != s || !leaf(t)))?;
    }
    refused("M2M edge is not (parent, child)", lists.m2m.iter().find(|&(t, s)| parent(s) != t))?;
    refused("L2L edge is not (child, parent)", lists.l2l.iter().find(|&(t, s)| parent(t) != s))
}

/// Row `i` of rows of `length`.
fn row<T>(a: &[T], i: usize, length: usize) -> &[T] {
    &a[i * length..(i + 1) * length]
}

/// `to[order[i]] = from[i]` for rows of `length` numbers.
fn to_user<T: Real>(from: &[T], order: &[u32], length: usize, to: &mut [f64]) {
    for (i, &user) in order.iter().enumerate() {
        for c in 0..length {
            to[user as usize * length + c] = from[i * length + c].f64();
        }
    }
}

impl<H: Hierarchy, T: Real> Arrays<'_, H, T> {
    /// Sources at tree positions `range`, with strengths.
    fn cloud(&self, range: Range<usize>) -> Cloud<'_, T> {
        cloud(&self.sources, &self.strengths, self.expansion.strengths(), range)
    }

    /// Calls `f(leaf, targets, values)` for each leaf with targets, and keeps the values.
    fn each_leaf(&mut self, f: impl Fn(&Self, usize, &[[f64; 3]], &mut [T]) + Sync)
    where
        Self: Sync,
    {
        let width = self.expansion.values();
        let mut values = std::mem::take(&mut self.values);
        let mut rest = &mut values[..];
        let mut parts = Vec::with_capacity(self.leaves.len());
        for &b in &self.leaves {
            let range = self.tree.targets_of(b as usize);
            let (mine, others) = rest.split_at_mut(range.len() * width);
            parts.push((b as usize, range, mine));
            rest = others;
        }
        parts.into_par_iter().for_each(|(b, range, mine)| f(self, b, &self.targets[range], mine));
        self.values = values;
    }

    /// `b` and its ancestors: an edge into any of them reaches the targets of `b`.
    fn lineage(&self, b: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(b), |&b| Some(self.tree.parent(b)).filter(|&p| p != NONE).map(|p| p as usize))
    }
}

fn cloud<'a, T>(xyz: &'a [[f64; 3]], strengths: &'a [T], width: usize, r: Range<usize>) -> Cloud<'a, T> {
    Cloud { strengths: &strengths[r.start * width..r.end * width], xyz: &xyz[r] }
}

impl<H: Hierarchy, T: Real> Stages for Arrays<'_, H, T> {
    type Lists = Lists;

    fn levels(&self) -> usize {
        self.tree.levels()
    }

    fn scatter(&mut self) -> Result<(), Error> {
        let width = self.expansion.strengths();
        for (i, &user) in self.tree.source_order().iter().enumerate() {
            for c in 0..width {
                self.strengths[i * width + c] = T::of(self.input[user as usize * width + c]);
            }
        }
        self.values.fill(T::default());
        self.multipoles.fill(T::default());
        self.locals.fill(T::default());
        Ok(())
    }

    fn p2m(&mut self, lists: &Lists) -> Result<(), Error> {
        let (tree, e, cubes, width) = (self.tree, self.expansion, &self.cubes, self.expansion.strengths());
        let (xyz, strengths) = (&self.sources, &self.strengths);
        self.multipoles.par_chunks_mut(e.multipole_len().max(1)).enumerate().for_each(|(b, multipole)| {
            if !lists.p2m.row(b).is_empty() {
                e.p2m(cubes[b], cloud(xyz, strengths, width, tree.sources_of(b)), multipole);
                e.finish_multipole(cubes[b], multipole);
            }
        });
        Ok(())
    }

    fn m2m(&mut self, lists: &Lists, level: usize) -> Result<(), Error> {
        let (e, cubes, boxes, n) =
            (self.expansion, &self.cubes, self.tree.level(level), self.expansion.multipole_len());
        let (to, children) = self.multipoles.split_at_mut(boxes.end * n);
        to[boxes.start * n..].par_chunks_mut(n.max(1)).enumerate().for_each(|(i, multipole)| {
            let b = boxes.start + i;
            for &c in lists.m2m.row(b) {
                e.m2m(cubes[b], cubes[c as usize], row(children, c as usize - boxes.end, n), multipole);
            }
            if !lists.m2m.row(b).is_empty() {
                e.finish_multipole(cubes[b], multipole);
            }
        });
        Ok(())
    }

    fn exchange(&mut self) -> Result<(), Error> {
        let Some(exchange) = self.tree.shared().and_then(|shared| shared.exchange.clone()) else { return Ok(()) };
        let (n, width) = (self.expansion.multipole_len(), self.expansion.strengths());
        let component = |c: usize| self.strengths.iter().skip(c).step_by(width).map(|q| q.f64()).collect();
        let mut strengths: Vec<Vec<f64>> = (0..width).map(component).collect();
        exchange.lend(&strengths)?;
        crate::ranks::put(self.tree.shared(), &exchange.ghosts(width)?, &mut strengths);
        for (c, component) in strengths.iter().enumerate() {
            self.strengths.iter_mut().skip(c).step_by(width).zip(component).for_each(|(to, q)| *to = T::of(*q));
        }
        crate::ranks::complete_by(&*exchange, &mut self.multipoles, n)?;
        let after = Lists { m2m: exchange.after().clone(), ..Lists::default() };
        if !after.m2m.is_empty() {
            for level in (0..self.tree.levels()).rev() {
                self.m2m(&after, level)?;
            }
        }
        Ok(())
    }

    fn m2l(&mut self, lists: &Lists) -> Result<(), Error> {
        let (e, cubes, multipoles, n) = (self.expansion, &self.cubes, &self.multipoles, self.expansion.multipole_len());
        self.locals.par_chunks_mut(e.local_len().max(1)).enumerate().for_each(|(b, local)| {
            for &s in lists.m2l.row(b) {
                e.m2l(cubes[b], cubes[s as usize], row(multipoles, s as usize, n), local);
            }
        });
        Ok(())
    }

    fn p2l(&mut self, lists: &Lists) -> Result<(), Error> {
        let (tree, e, cubes, width) = (self.tree, self.expansion, &self.cubes, self.expansion.strengths());
        let (xyz, strengths) = (&self.sources, &self.strengths);
        self.locals.par_chunks_mut(e.local_len().max(1)).enumerate().for_each(|(b, local)| {
            for &s in lists.p2l.row(b) {
                let sources = cloud(xyz, strengths, width, tree.sources_of(s as usize));
                e.p2l(cubes[b], cubes[s as usize], sources, local);
            }
        });
        Ok(())
    }

    fn l2l(&mut self, lists: &Lists, level: usize) -> Result<(), Error> {
        let (e, cubes, boxes, n) = (self.expansion, &self.cubes, self.tree.level(level), self.expansion.local_len());
        let (parents, to) = self.locals.split_at_mut(boxes.start * n);
        to[..boxes.len() * n].par_chunks_mut(n.max(1)).enumerate().for_each(|(i, local)| {
            let b = boxes.start + i;
            for &p in lists.l2l.row(b) {
                e.l2l(cubes[b], cubes[p as usize], row(parents, p as usize, n), local);
            }
            if [&lists.m2l, &lists.p2l, &lists.l2l].iter().any(|edges| !edges.row(b).is_empty()) {
                e.finish_local(cubes[b], local);
            }
        });
        Ok(())
    }

    fn l2p(&mut self, lists: &Lists) -> Result<(), Error> {
        let n = self.expansion.local_len();
        self.each_leaf(|s, b, targets, values| {
            if !lists.l2p.row(b).is_empty() {
                s.expansion.l2p(s.cubes[b], row(&s.locals, b, n), targets, values);
            }
        });
        Ok(())
    }

    fn m2p(&mut self, lists: &Lists) -> Result<(), Error> {
        let n = self.expansion.multipole_len();
        self.each_leaf(|s, b, targets, values| {
            for source in s.lineage(b).flat_map(|a| lists.m2p.row(a)).map(|&x| x as usize) {
                s.expansion.m2p(s.cubes[source], row(&s.multipoles, source, n), targets, values);
            }
        });
        Ok(())
    }

    fn p2p(&mut self, lists: &Lists) -> Result<(), Error> {
        let same_points = self.tree.same_points();
        self.each_leaf(|s, b, targets, values| {
            let own = s.tree.targets_of(b);
            for &source in s.lineage(b).flat_map(|a| lists.p2p.row(a)) {
                let r = s.tree.sources_of(source as usize);
                // The targets are the sources from this position on.
                let first = s.tree.shared().map_or(0, |shared| shared.first);
                let own = own.start + first..own.end + first;
                if same_points && r.start <= own.start && own.end <= r.end {
                    s.expansion.p2p(s.cloud(r.start..own.start), targets, false, values);
                    s.expansion.p2p(s.cloud(own.clone()), targets, true, values);
                    s.expansion.p2p(s.cloud(own.end..r.end), targets, false, values);
                } else {
                    s.expansion.p2p(s.cloud(r), targets, false, values);
                }
            }
        });
        Ok(())
    }

    fn gather(&mut self) -> Result<(), Error> {
        to_user(&self.values, self.tree.target_order(), self.expansion.values(), &mut self.output);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fmm_traits::constant_one::{ConstantOne, expected, wrong_pairs};
    use fmm_traits::testkit::clouds::{CloudKind, any_cloud, integer_strengths};
    use fmm_tree::{BuildOptions, ListOptions, build, uvwx};
    use proptest::prelude::*;

    /// Runs the oracle; the failure names the pairs of boxes.
    fn exact(sources: &[f64], targets: Option<&[f64]>, ncrit: usize, options: ListOptions) -> Result<(), String> {
        let tree = build(sources, targets, &BuildOptions { ncrit: Some(ncrit), ..Default::default() }).unwrap();
        let lists = uvwx(&tree, &options).unwrap();
        let strengths = integer_strengths(tree.sources.len(), 7);
        let mut run = Pairwise::new(&tree, &lists, &ConstantOne).unwrap();
        for _ in 0..2 {
            let found = run.apply(&strengths, &mut |_, _| true).unwrap();
            if found != expected(&strengths, tree.targets.len(), tree.same_points()) {
                return Err(format!("wrong sums; wrong pairs: {:?}", wrong_pairs(&tree, &lists, 5)));
            }
        }
        Ok(())
    }

    #[test]
    fn constant_one_is_exact_on_every_cloud() {
        for kind in CloudKind::ALL {
            for n in [0, 1, 2, 40, 3000] {
                for ncrit in [1, 13, 200] {
                    let p = kind.points(n, 11);
                    exact(&p, None, ncrit, ListOptions::default())
                        .unwrap_or_else(|e| panic!("{} {n} {ncrit}: {e}", kind.name()));
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..Default::default() })]
        #[test]
        fn constant_one_is_exact_on_pairs_of_clouds(
            (sk, sn, ss) in any_cloud(3000),
            (tk, tn, ts) in any_cloud(3000),
            ncrit in 1usize..200,
            (m2p_min_sources, p2l_min_targets) in (0usize..40, 0usize..40),
        ) {
            let o = ListOptions { m2p_min_sources, p2l_min_targets };
            prop_assert_eq!(exact(&sk.points(sn, ss), Some(&tk.points(tn, ts)), ncrit, o), Ok(()));
            prop_assert_eq!(exact(&sk.points(sn, ss), None, ncrit, o), Ok(()));
        }
    }

    #[test]
    fn a_missing_edge_is_seen_and_named() {
        let p = CloudKind::Clustered.points(500, 1);
        let tree = build(&p, None, &BuildOptions { ncrit: Some(10), ..Default::default() }).unwrap();
        let mut lists = uvwx(&tree, &ListOptions::default()).unwrap();
        let (target, source_box) = lists.p2p.iter().nth(100).unwrap();
        lists.p2p.sources.remove(100);
        lists.p2p.starts.iter_mut().filter(|s| **s > 100).for_each(|s| *s -= 1);
        let strengths = integer_strengths(500, 1);
        let found = Pairwise::new(&tree, &lists, &ConstantOne).unwrap().apply(&strengths, &mut |_, _| true).unwrap();
        assert_ne!(found, expected(&strengths, 500, true));
        let wrong = wrong_pairs(&tree, &lists, 9);
        assert_eq!(wrong.len(), 1);
        assert_eq!((wrong[0].target, wrong[0].source_box, wrong[0].times), (target, source_box, 0));
    }

    /// A list policy of another kind: P2P from the root to the root.
    #[test]
    fn one_edge_between_roots_is_a_direct_sum() {
        let p = CloudKind::Uniform.points(300, 1);
        let tree = build(&p, None, &BuildOptions { ncrit: Some(10), ..Default::default() }).unwrap();
        let mut lists = Lists::none(tree.len());
        lists.p2p.starts[1..].fill(1);
        lists.p2p.sources.push(0);
        assert_eq!(wrong_pairs(&tree, &lists, 9), []);
        let strengths = integer_strengths(300, 1);
        let found = Pairwise::new(&tree, &lists, &ConstantOne).unwrap().apply(&strengths, &mut |_, _| true).unwrap();
        assert_eq!(found, expected(&strengths, 300, true));
        assert!(Pairwise::new(&tree, &lists, &ConstantOne).unwrap().apply(&[1.0], &mut |_, _| true).is_err());
    }

    #[test]
    fn refused_edges_and_cancellation_are_errors() {
        let p = CloudKind::Uniform.points(500, 1);
        let tree = build(&p, None, &BuildOptions { ncrit: Some(10), ..Default::default() }).unwrap();
        let mut lists = uvwx(&tree, &ListOptions::default()).unwrap();
        let strengths = integer_strengths(500, 1);
        let stopped = Pairwise::new(&tree, &lists, &ConstantOne).unwrap().apply(&strengths, &mut |_, done| done < 0.5);
        assert_eq!(stopped, Err(Error::Cancelled { stage: "l2l" }));
        lists.m2m.sources[0] = tree.len() as u32 - 1;
        assert!(matches!(Pairwise::new(&tree, &lists, &ConstantOne), Err(Error::Edge { .. })));
    }
}
