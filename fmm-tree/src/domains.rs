//! Domains of two and four children: the 61 stencil. Gumerov & Duraiswami (2008), §2.2.3, mention it without details.
//!
//! A *family* is the eight children of one box. A source box usually sends its multipole to several children of a
//! family. A *domain* is a group of these children: a slab of four (6 of them), a pair (12) or a single child (8). If
//! the source is far enough from a domain, one translation to the centre of the domain serves all its children, and L2L
//! hands the result down to them. (The 119 stencil does the same with the whole family as the only domain.)
//!
//! How far is enough? In sides of a child, the spheres around source and domain have the radii R₁ = √3/2 and R₂ = 3/2
//! (slab) or √(3/2) (pair). By eq. 23 their centres must be D* = R₁ + R₂/η* apart: 2.830 for a slab, 2.470 for a pair,
//! 3.134 for the family, 2 for a child.
//!
//! Each source uses the fewest domains that cover, without overlap, the children that need it. Over the 208 sources
//! around a family these are 488 translations: 80 to the family, 104 to slabs, 152 to pairs, 152 to children. That is
//! 488/8 = 61 per box.
//!
//! Domains are not boxes of the tree, so no edge list names them. The lists are those of
//! [`stencil119`](crate::stencil119); a backend that computes the edges of a family together merges edges into domains.

/// A group of children of one family at whose centre a translation may end: one child, a pair or a slab.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Domain {
    /// The children, one bit per octant.
    pub members: u8,
    /// Centre of the domain relative to the centre of the family, in halves of a child's side.
    pub center: [i64; 3],
}

impl Domain {
    /// Number of axes along which the domain is two children long: 0 for a child, 1 for a pair, 2 for a slab.
    pub fn long(&self) -> usize {
        self.members.count_ones().ilog2() as usize
    }

    /// Side, in sides of a child, of the cube that has the same circumscribed sphere as the domain. The cube also has
    /// the same mean square distance from its centre.
    pub fn side(&self) -> f64 {
        ((1 + self.long()) as f64).sqrt()
    }

    /// Whether a multipole may be translated to the domain within the error bound of the V list. `source` is the centre
    /// of the source box relative to the centre of the family, in halves of a child's side.
    fn admits(&self, source: [i64; 3]) -> bool {
        let (radius, worst) = (0.75f64.sqrt(), 3f64.sqrt() / (4.0 - 3f64.sqrt()));
        let least = radius + radius * self.side() / worst;
        let distance2: i64 = (0..3).map(|a| (source[a] - self.center[a]).pow(2)).sum();
        // Squared distances are whole numbers. Only the squared bound of a single child is whole too, and some sources
        // meet it exactly; hence the slack.
        distance2 as f64 >= (2.0 * least).powi(2) - 1e-6
    }
}

/// Number of [`Domain`]s.
pub const DOMAINS: usize = 26;
/// Largest coordinate of a source around a family, in halves of a child's side.
const SOURCE_REACH: i64 = 5;
/// Sources around a family along one axis: −5, −3, −1, 1, 3, 5.
const SOURCES_PER_AXIS: i64 = SOURCE_REACH + 1;

/// All domains. Domain `o` for o < 8 is the child in octant o.
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

/// For every source around a family, and every set of children that need it: the fewest domains that cover the set.
#[derive(Clone, Debug)]
pub struct Covers {
    domains: Vec<Domain>,
    /// `first[place of the source][set of children]`: the first domain of the cover. The cover of the remaining
    /// children gives the other domains.
    first: Vec<[u8; 256]>,
}

impl Default for Covers {
    fn default() -> Self {
        let domains = domains();
        let n = SOURCES_PER_AXIS;
        let at = |i: i64| [i % n, i / n % n, i / n.pow(2)].map(|k| 2 * k - SOURCE_REACH);
        let first = (0..n.pow(3)).map(|i| {
            let (mut first, mut count) = ([0; 256], [0; 256]);
            for wanted in 1..256usize {
                // Single children always fit. Larger domains have higher numbers, so `rev` prefers them in a draw.
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

    /// Numbers of the domains that cover the children `wanted` (one bit per octant). `source` is the centre of the
    /// source box relative to the centre of the family, in halves of a child's side. A source that is not a child of
    /// one of the family's neighbours gets each child by itself.
    pub fn of(&self, source: [i64; 3], mut wanted: u8) -> impl Iterator<Item = usize> + '_ {
        let inside = source.iter().all(|x| x % 2 != 0 && x.abs() <= SOURCE_REACH);
        let at = source.iter().rev().fold(0, |at, x| at * SOURCES_PER_AXIS + (x + SOURCE_REACH) / 2);
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

    /// 61 translations per box. Of the 488 translations of a family, 80 end at the family itself.
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
