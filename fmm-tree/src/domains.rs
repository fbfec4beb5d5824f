//! Domains of two and four children: the 61 stencil (Gumerov & Duraiswami 2008, §2.2.3), which the paper mentions and does
//! not give.
//!
//! M2L of one source goes to several children of a family. If the source is far enough from a *domain* of children that
//! all want it, one translation to the centre of the domain serves them, and L2L hands it down; the 119 stencil is this with
//! the whole family as domain. Besides there are 6 slabs of four children and 12 pairs. In units of the child's
//! side the spheres around source and domain have the radii R₁ = √3/2 and R₂ = 3/2 (slabs) or √(3/2) (pairs), and eq. 23 asks
//! for centres D* = R₁ + R₂/η* = 2.830 or 2.470 apart (family 3.134, child 2). The fewest domains that cover, without
//! overlap, the children that want a source sum to 488 over the 208 sources around a family: 80 reach the
//! family, 104 a slab, 152 a pair and 152 a child. That is 61 translations a box.
//!
//! Domains are no boxes of a tree, so no list names them: lists are those of [`stencil119`](crate::stencil119), and a backend
//! that does the edges of a family together merges them.

/// Where translations of a family end: the children by octant, pairs, slabs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Domain {
    /// The children, a bit an octant.
    pub members: u8,
    /// Its centre from that of the family, in halves of a child's side.
    pub center: [i64; 3],
}

impl Domain {
    /// Axes along which it is two children long: 0 for a child, 1 for a pair, 2 for a slab.
    pub fn long(&self) -> usize {
        self.members.count_ones().ilog2() as usize
    }

    /// Side of the cube with the same sphere around it (and the same mean square distance from the centre), in sides of a
    /// child.
    pub fn side(&self) -> f64 {
        ((1 + self.long()) as f64).sqrt()
    }

    /// Whether a multipole at `source`, from the centre of the family in halves of a child's side, may be
    /// translated to it with the error bound of the V list.
    fn admits(&self, source: [i64; 3]) -> bool {
        let (radius, worst) = (0.75f64.sqrt(), 3f64.sqrt() / (4.0 - 3f64.sqrt()));
        let least = radius + radius * self.side() / worst;
        let distance2: i64 = (0..3).map(|a| (source[a] - self.center[a]).pow(2)).sum();
        // Squares of distances are whole numbers, none of them near a bound but that of a child, which is met.
        distance2 as f64 >= (2.0 * least).powi(2) - 1e-6
    }
}

/// Number of [`Domain`]s.
pub const DOMAINS: usize = 26;
/// Farthest source around a family, in halves of a child's side.
const REACH: i64 = 5;
/// Sources around a family, per axis.
const PLACES: i64 = REACH + 1;

/// All domains: child `o` is number o.
pub fn domains() -> Vec<Domain> {
    // An axis is cut (child 0 or 1) or not (2).
    let cuts = |i: usize| [i % 3, i / 3 % 3, i / 9];
    let domain = |cut: [usize; 3]| Domain {
        members: (0..8).filter(|o| (0..3).all(|a| cut[a] == 2 || cut[a] == o >> a & 1)).map(|o| 1 << o).sum(),
        center: cut.map(|c| [-1, 1, 0][c]),
    };
    let mut all: Vec<Domain> = (0..DOMAINS).map(|i| domain(cuts(i))).collect();
    all.sort_by_key(|d| (d.long(), d.members));
    all
}

/// The fewest domains for every source around a family and every set of children that want it.
#[derive(Clone, Debug)]
pub struct Covers {
    domains: Vec<Domain>,
    /// By place of the source: the first domain of each set.
    first: Vec<[u8; 256]>,
}

impl Default for Covers {
    fn default() -> Self {
        let domains = domains();
        let at = |i: i64| [i % PLACES, i / PLACES % PLACES, i / PLACES.pow(2)].map(|k| 2 * k - REACH);
        let first = (0..PLACES.pow(3)).map(|i| {
            let (mut first, mut count) = ([0; 256], [0; 256]);
            for wanted in 1..256usize {
                // The children one by one are always a way; larger domains come later and win a draw.
                let fits = |d: &&(usize, &Domain)| {
                    let members = d.1.members as usize;
                    members & !wanted == 0 && (d.1.long() == 0 || d.1.admits(at(i)))
                };
                let rest = |d: &(usize, &Domain)| count[wanted & !(d.1.members as usize)];
                let all: Vec<_> = domains.iter().enumerate().collect();
                if let Some(best) = all.iter().rev().filter(fits).min_by_key(|d| rest(d)) {
                    (first[wanted], count[wanted]) = (best.0 as u8, 1 + rest(best));
                }
            }
            first
        });
        let first = first.collect();
        Covers { domains, first }
    }
}

impl Covers {
    /// The domains.
    pub fn domains(&self) -> &[Domain] {
        &self.domains
    }

    /// Numbers of the domains that cover the children `wanted` (a bit an octant) for a source whose centre is `source` from that
    /// of the family, in halves of a child's side; children one by one for sources that are no children of
    /// neighbours.
    pub fn of(&self, source: [i64; 3], mut wanted: u8) -> impl Iterator<Item = usize> + '_ {
        let inside = source.iter().all(|x| x % 2 != 0 && x.abs() <= REACH);
        let at = source.iter().rev().fold(0, |at, x| at * PLACES + (x + REACH) / 2);
        let first = inside.then(|| &self.first[at as usize]);
        std::iter::from_fn(move || {
            let next = first.map_or(wanted.trailing_zeros() as usize, |f| f[wanted as usize] as usize);
            let found = (wanted != 0).then_some(next)?;
            wanted &= !self.domains[found].members;
            Some(found)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ListOptions, build_uniform, stencil119};

    #[test]
    fn there_are_8_children_12_pairs_and_6_slabs() {
        let all = domains();
        for (o, d) in all.iter().enumerate().take(8) {
            assert_eq!((d.members, d.center), (1 << o, std::array::from_fn(|a| 2 * (o as i64 >> a & 1) - 1)));
        }
        let count = |long: usize| all.iter().filter(|d| d.long() == long).count();
        assert_eq!([0, 1, 2].map(count), [8, 12, 6]);
        for d in all {
            // The corner of the farthest member lies on the sphere.
            let half = (0..3).map(|a| if d.center[a] == 0 { 1.0f64 } else { 0.25 }).sum::<f64>();
            assert!((0.75 * d.side().powi(2) - half).abs() < 1e-12);
        }
    }

    /// 61 translations a box, 80 of a family's 488 at the family itself.
    #[test]
    fn an_interior_box_has_61_translations() {
        let at = |i: usize| [i % 16, i / 16 % 16, i / 256].map(|k| (k as f64 + 0.5) / 16.0);
        let points: Vec<f64> = (0..4096).flat_map(at).collect();
        let tree = build_uniform(&points, None, 4, Some(([0.0; 3], 1.0))).unwrap();
        let lists = stencil119(&tree, &ListOptions::default()).unwrap();
        let covers = Covers::default();
        let inside = |b: &usize| tree.anchor[*b].iter().all(|&i| (1..7).contains(&i));
        for parent in tree.level(3).filter(inside) {
            let mut wanted = std::collections::BTreeMap::new();
            for child in tree.children(parent) {
                for &s in lists.m2l.row(child) {
                    *wanted.entry(s).or_insert(0u8) |= 1 << tree.octant[child];
                }
            }
            let mut ends = [0; 3];
            for (&s, &children) in &wanted {
                let far = |a: usize| 2 * tree.anchor[s as usize][a] as i64 + 1 - 4 * tree.anchor[parent][a] as i64 - 2;
                let mut left = children;
                for d in covers.of(std::array::from_fn(far), children) {
                    let domain = covers.domains()[d];
                    assert_eq!(domain.members & !left, 0, "children that did not want it, or twice");
                    left &= !domain.members;
                    ends[domain.long()] += 1;
                }
                assert_eq!(left, 0);
            }
            let family = lists.m2l.row(parent).iter().filter(|&&s| tree.level_of(s as usize) == 4).count();
            assert_eq!((ends, family), ([152, 152, 104], 80));
            assert_eq!((ends.iter().sum::<usize>() + family) as f64 / 8.0, 61.0);
        }
    }

    /// Eqs. 20–23: no domain is used nearer than the bound allows.
    #[test]
    fn every_domain_keeps_the_bound() {
        let covers = Covers::default();
        let (r1, worst) = (0.75f64.sqrt(), 3f64.sqrt() / (4.0 - 3f64.sqrt()));
        for d in covers.domains().iter().filter(|d| d.long() > 0) {
            for i in 0..216 {
                let source = [i % 6, i / 6 % 6, i / 36].map(|k| 2 * k - 5);
                let distance = (0..3).map(|a| 0.25 * ((source[a] - d.center[a]) as f64).powi(2)).sum::<f64>().sqrt();
                let r2 = r1 * d.side();
                let eta = r1.max(r2) / (distance - r1.min(r2));
                assert_eq!(d.admits(source), (0.0..=worst).contains(&eta), "{d:?} {source:?}");
            }
        }
    }
}
