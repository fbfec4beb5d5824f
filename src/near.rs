//! The near field as a sparse block list: which pairs a plan sums directly. Boundary-element
//! codes replace exactly these.

use crate::plan::{Engine, Plan};
use std::borrow::Cow;

/// A dense block of the near field: every target of one leaf with every source of another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NearBlock<'a> {
    /// Rows of the output.
    pub targets: Cow<'a, [u32]>,
    /// Indices of sources.
    pub sources: Cow<'a, [u32]>,
}

impl Plan {
    /// The blocks of pairs that are summed directly, in the caller's indices. No pair is in two
    /// blocks. Where targets are the sources the pair (i, i) is in a block but skipped by the sum.
    /// A direct plan is one block.
    pub fn near_field(&self) -> Box<dyn Iterator<Item = NearBlock<'_>> + '_> {
        let all = |n: usize| Cow::Owned((0..n as u32).collect::<Vec<u32>>());
        match &self.engine {
            Engine::Empty => Box::new(std::iter::empty()),
            Engine::Direct { .. } => {
                let (targets, sources) = (all(self.n_targets), all(self.n_sources));
                Box::new(std::iter::once(NearBlock { targets, sources }))
            }
            Engine::Fast { solver, .. } => {
                let (tree, lists) = (solver.tree(), solver.lists());
                let rows = self.rows_of_sources();
                let blocks = lists.p2p.iter().map(move |(t, s)| {
                    let targets = &tree.targets.order[tree.targets_of(t as usize)];
                    let targets = match &rows {
                        None => Cow::Borrowed(targets),
                        Some(rows) => targets.iter().flat_map(|&i| rows[i as usize].iter().copied()).collect(),
                    };
                    NearBlock { targets, sources: Cow::Borrowed(&tree.sources.order[tree.sources_of(s as usize)]) }
                });
                Box::new(blocks.filter(|b: &NearBlock| !b.targets.is_empty()))
            }
        }
    }

    /// For a subset picked from an evaluation at all sources: the rows that show each source.
    fn rows_of_sources(&self) -> Option<Vec<Vec<u32>>> {
        let Engine::Fast { pick: Some(pick), .. } = &self.engine else { return None };
        let mut rows = vec![Vec::new(); self.n_sources];
        for (row, &i) in pick.iter().enumerate() {
            rows[i].push(row as u32);
        }
        Some(rows)
    }
}
