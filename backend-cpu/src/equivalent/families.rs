//! The M2L edges of a level as pairs of *families*. A family is the children of one box, up to eight. Its source
//! families are the children of the 26 boxes around that box.

use fmm_kernels::equivalent::spectra::offset_index;
use fmm_traits::{Error, Lists, Tree, tree::NONE};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::LazyLock;

/// Number of children of a box.
pub const FAMILY: usize = 8;
/// Number of boxes around a box.
pub const AROUND: usize = 26;

/// The 7³ offsets with −3 to 3 along each axis: the 316 of M2L, and the 27 of adjacent boxes.
pub const PLACES: usize = 343;

/// The place of an offset among [`PLACES`], with x the fastest.
pub fn place(offset: [i32; 3]) -> usize {
    offset.iter().rev().fold(0, |place, d| 7 * place + (d + 3) as usize)
}

/// The operators between the children of two families, for one of the [`AROUND`] relative positions.
pub struct Position {
    /// For each source octant, the [`place`] of the offset of target octant 0. A target octant in the upper half of
    /// x, y or z lies 1, 7 or 49 places further, and these distances add up.
    pub first: [u16; FAMILY],
    /// The pairs of children that are not adjacent: bit `8·target octant + source octant`.
    far: u64,
}

/// All positions of a source family around a target family, in lexicographic order of the offset.
pub static POSITIONS: LazyLock<[Position; AROUND]> = LazyLock::new(|| {
    std::array::from_fn(|d| {
        let code = if d < 13 { d } else { d + 1 } as i32;
        let family = [code / 9 - 1, code / 3 % 3 - 1, code % 3 - 1];
        let bit = |octant: usize, axis: usize| (octant >> axis & 1) as i32;
        let offset =
            |t: usize, s: usize| -> [i32; 3] { std::array::from_fn(|a| bit(t, a) - 2 * family[a] - bit(s, a)) };
        let pairs = (0..FAMILY).flat_map(|t| (0..FAMILY).map(move |s| (t, s)));
        let far = pairs.filter(|&(t, s)| offset_index(offset(t, s)).is_some()).map(|(t, s)| 1 << (8 * t + s)).sum();
        Position { first: std::array::from_fn(|s| place(offset(0, s)) as u16), far }
    })
});

/// The M2L edges of one level, family by family.
#[derive(Debug, Default)]
pub struct Families {
    /// Parent box of each family that sends or receives. The index of a parent is the *row* of its family.
    pub parents: Vec<u32>,
    /// For each family and position, the row of the source family there, or [`NONE`] if there are no edges from it.
    pub around: Vec<[u32; AROUND]>,
    /// For each family, the children that have sources, one bit per octant.
    pub present: Vec<u8>,
    /// The rows of the families that receive anything.
    pub targets: Vec<u32>,
}

impl Families {
    /// Whether there are no edges.
    pub fn is_empty(&self) -> bool {
        self.parents.is_empty()
    }
    /// Whether the family of `row` receives anything.
    pub fn receives(&self, row: usize) -> bool {
        self.around[row].iter().any(|&r| r != NONE)
    }
}

/// Arranges the M2L edges of `lists`, level by level. Between two families there must be either no edges, or exactly
/// one edge between each child with sources and each child with targets that is not adjacent to it.
///
/// # Errors
/// [`Error::Edge`] names an edge that this form cannot express, an edge that is there twice, or a pair of families of
/// which some edges are missing.
pub fn arrange(tree: &Tree, lists: &Lists) -> Result<Vec<Families>, Error> {
    (0..tree.levels()).map(|level| arrange_level(tree, lists, level)).collect()
}

fn apart(target: u32, source_box: u32) -> Error {
    Error::Edge { what: "Fourier M2L takes boxes of one level, 2 or 3 sides apart".into(), target, source_box }
}

fn arrange_level(tree: &Tree, lists: &Lists, level: usize) -> Result<Families, Error> {
    let boxes = tree.level(level);
    let mut families = Families::default();
    let edges = lists.m2l.starts[boxes.start]..lists.m2l.starts[boxes.end];
    if edges.is_empty() {
        return Ok(families);
    }
    let first = lists.m2l.sources[edges.start];
    let above = tree.level(level.checked_sub(1).ok_or_else(|| apart(0, first))?);
    // Row of each box of the level above, in Morton order: first marked with 0, then numbered.
    let mut row = vec![NONE; above.len()];
    for t in boxes.clone().filter(|&t| !lists.m2l.row(t).is_empty()) {
        row[tree.parent[t] as usize - above.start] = 0;
    }
    for &s in &lists.m2l.sources[edges] {
        if !boxes.contains(&(s as usize)) {
            let target = lists.m2l.iter().find(|e| e.1 == s && boxes.contains(&(e.0 as usize)));
            return Err(apart(target.map_or(NONE, |e| e.0), s));
        }
        row[tree.parent[s as usize] as usize - above.start] = 0;
    }
    for (b, row) in above.clone().zip(&mut row).filter(|(_, row)| **row != NONE) {
        *row = families.parents.len() as u32;
        families.parents.push(b as u32);
    }
    let members = |parent: u32, has: &dyn Fn(usize) -> bool| {
        tree.children(parent as usize).filter(|&b| has(b)).fold(0u8, |m, b| m | 1 << tree.octant[b])
    };
    families.present = families.parents.iter().map(|&parent| members(parent, &|b| tree.source_count(b) > 0)).collect();
    let (parents, present) = (&families.parents, &families.present);
    families.around = parents
        .par_iter()
        .with_min_len(64)
        .map(|&parent| {
            let receivers = members(parent, &|b| !tree.targets_of(b).is_empty());
            around(tree, lists, parent as usize, receivers, [parents, &row], present, &above)
        })
        .collect::<Result<_, _>>()?;
    families.targets = (0..families.parents.len() as u32).filter(|&row| families.receives(row as usize)).collect();
    Ok(families)
}

/// The rows of the source families around the family of `parent`. `receivers` are the children of `parent` that have
/// targets. `parents` is indexed by row, `row` by box of the level `above`.
fn around(
    tree: &Tree,
    lists: &Lists,
    parent: usize,
    receivers: u8,
    [parents, row]: [&[u32]; 2],
    present: &[u8],
    above: &Range<usize>,
) -> Result<[u32; AROUND], Error> {
    let mut rows = [NONE; AROUND];
    let mut found = [0u64; AROUND];
    for t in tree.children(parent) {
        for &s in lists.m2l.row(t) {
            let from = tree.parent[s as usize] as usize;
            let step: [i64; 3] =
                std::array::from_fn(|a| tree.anchor[from][a] as i64 - tree.anchor[parent][a] as i64 + 1);
            let code = step.iter().try_fold(0, |c, &x| (0..3).contains(&x).then_some(3 * c + x as usize));
            let Some(code) = code.filter(|&c| c != 13) else { return Err(apart(t as u32, s)) };
            let d = code - usize::from(code > 13);
            let edge = 1 << (8 * tree.octant[t] + tree.octant[s as usize]);
            if POSITIONS[d].far & edge == 0 {
                return Err(apart(t as u32, s));
            }
            if found[d] & edge != 0 {
                return Err(Error::Edge { what: "an M2L edge is there twice".into(), target: t as u32, source_box: s });
            }
            found[d] |= edge;
            rows[d] = row[from - above.start];
        }
    }
    for d in (0..AROUND).filter(|&d| found[d] != 0) {
        let senders = u64::from(present[rows[d] as usize]) * 0x0101_0101_0101_0101;
        let expected = (0..FAMILY).filter(|t| receivers >> t & 1 == 1).fold(0, |m, t| m | 0xff << (8 * t)) & senders;
        let missing = POSITIONS[d].far & expected & !found[d];
        if missing != 0 {
            let (all, some) = ((POSITIONS[d].far & expected).count_ones(), missing.count_ones());
            let what = format!("{some} of the {all} M2L edges between the children of two boxes are missing");
            return Err(Error::Edge { what, target: parent as u32, source_box: parents[rows[d] as usize] });
        }
    }
    Ok(rows)
}
