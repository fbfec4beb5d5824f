//! The exchange of complete multipoles at the frontier of the ranks.
//!
//! A box is *cut* if its sources lie on several ranks. A reader of a cut box asks for the complete multipoles of those
//! children that are not cut, and does M2M itself, from the bottom up. Children are added in the order of one rank. So
//! no bit depends on the number of ranks.

use super::Wanted;
use crate::local::Local;
use crate::world::World;
use fmm_traits::tree::Edges;

/// What a rank needs beside its own multipoles, to have those of the boxes in `read`, and the M2M edges into cut boxes.
pub fn wanted(world: &World, local: &Local, read: &[u32]) -> (Wanted, Edges) {
    let (tree, me) = (&local.tree, world.rank() as u32);
    let (mut cut, mut whole) = (vec![false; tree.len()], vec![false; tree.len()]);
    let mut wanted = Wanted::new();
    let mut stack = read.to_vec();
    while let Some(b) = stack.pop() {
        let b = b as usize;
        if tree.source_count(b) == 0 || tree.gives(b) || cut[b] || whole[b] {
            continue;
        }
        let contributors = local.contributors(b);
        match contributors[..] {
            [owner] => {
                debug_assert_ne!(owner, me);
                whole[b] = true;
                wanted.push((b as u32, contributors));
            }
            _ => {
                cut[b] = true;
                stack.extend(tree.children(b).map(|c| c as u32));
            }
        }
    }
    wanted.sort_unstable();
    let mut after = Edges { starts: vec![0], sources: Vec::new() };
    for b in 0..tree.len() {
        if cut[b] {
            let children = tree.children(b).filter(|&c| tree.source_count(c) > 0);
            after.sources.extend(children.map(|c| c as u32));
        }
        after.starts.push(after.sources.len());
    }
    (wanted, after)
}
