//! The ends of M2L in a family, the children of one box: each child, domains of two or four children (the 61 stencil),
//! and the family as a whole (the 119 stencil; Gumerov & Duraiswami 2008, §2.2.3). Kernels in `kernels/arrange.cu`.
//!
//! An *end* has the number of its domain in [`fmm_tree::domains`]; the family comes last. Each end of each family that
//! receives anything is an item of the [`Table`]. A child and a family receive in the local of a box. A domain has a
//! local of its own behind those of the boxes, and hands it down to its children as soon as M2L is done.

use crate::arrange::{Arranged, Arranger, Checks, Items, SLOTS_PER_BOX, Table};
use crate::device::{Arg, Buffer, Device, blocks};
use crate::lists::DeviceEdges;
use fmm_kernels::equivalent::spectra::offset_index;
use fmm_traits::tree::NONE;
use fmm_traits::{Cube, Error};
use fmm_tree::domains::{Covers, DOMAINS, Domain, domains};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

/// Ends of M2L in a family: the domains, and the family.
pub(crate) const ENDS: usize = DOMAINS + 1;
/// The end of a family as a whole.
const WHOLE: usize = DOMAINS;
/// Children of a family.
const CHILDREN: usize = 8;
/// Kinds of domains that contain each child once: slabs and pairs along each axis.
pub(crate) const KINDS: usize = 6;
/// Slots along one axis, as in `slots.cuh`.
const SLOTS_PER_AXIS: i64 = 6;
/// Squared distance, in halves of a child's side, beyond which a source may send to a family as a whole: `is_distant`
/// of `fmm_tree::stencil`.
const NEAREST_TO_A_FAMILY: i64 = 39;
/// Places around the parent of a family, its own included: bits of the keys by which families are sorted.
const PLACES: u32 = 27;
/// Edges of a full V list.
const FULL_V_LIST: f64 = 189.0;
/// Families are sorted if boxes have on average fewer than this part of the edges of a full V list. Above it, most families
/// have all neighbours, and sorting saves nothing. (The 119 stencil has fewer edges, so there families are always sorted.)
const SORT_BELOW: f64 = 0.7;
/// Warps of a block of `family_edges`, which has one warp per family.
const WARPS: usize = 4;
/// Number of words that `family_edges` writes for each family (`KEPT` in arrange.cu).
const KEPT: usize = SLOTS_PER_BOX + SLOTS_PER_BOX / 2;
/// Families of a block of `end_table`.
pub(crate) const TABLE_FAMILIES: usize = 16;
/// Warps of a block of `end_table`.
pub(crate) const TABLE_WARPS: usize = 8;
/// Threads per block in the other kernels.
const BLOCK: u32 = 256;

/// The operators of M2L, and the choice of ends.
#[derive(Debug)]
pub(crate) struct M2lEnds {
    /// Target and source of each operator, in sides of the source. First come the offsets of the V list, in the order
    /// of [`offset_index`].
    pub operators: Vec<[Cube; 2]>,
    /// `numbers[end][slot]`: the operator, or [`NONE`].
    numbers: Vec<u32>,
    /// `first[slot][children]`: the first of the domains that cover these children. The cover of the remaining children
    /// gives the other domains.
    first: Vec<u8>,
    /// The domain of each kind that contains a child: `of[kind][octant]`. Empty without domains.
    of: Vec<u32>,
}

/// The centre of the source in a slot, relative to the centre of the family, in halves of a child's side. The first
/// axis varies slowest.
fn source(slot: usize) -> [i64; 3] {
    let (slot, n) = (slot as i64, SLOTS_PER_AXIS);
    [slot / (n * n), slot / n % n, slot % n].map(|at| n - 1 - 2 * at)
}

/// `center`, in halves of a child's side, as the centre of a cube of `side` sides of a child.
fn cube(center: [i64; 3], side: f64) -> Cube {
    Cube { center: center.map(|x| 0.5 * x as f64), side }
}

impl M2lEnds {
    /// The ends of U, V, W, X lists. With `parents`, sources that are far enough from a family may send to it as a
    /// whole. With `groups`, M2L ends at domains of children where the error bound allows.
    pub fn new(parents: bool, groups: bool) -> Self {
        // The same for all orders.
        static COVERS: LazyLock<Covers> = LazyLock::new(Covers::default);
        let (all, covers) = (domains(), groups.then(|| &*COVERS));
        let mut ends =
            M2lEnds { operators: vec![], numbers: vec![NONE; ENDS * SLOTS_PER_BOX], first: vec![], of: vec![] };
        let mut offsets: Vec<(usize, [i32; 3])> = (0..343)
            .map(|i| [i / 49 - 3, i / 7 % 7 - 3, i % 7 - 3])
            .filter_map(|d| offset_index(d).map(|i| (i, d)))
            .collect();
        offsets.sort_unstable();
        let at = |offset: [i32; 3]| Cube { center: offset.map(f64::from), side: 1.0 };
        ends.operators.extend(offsets.iter().map(|&(_, d)| [at(d), at([0; 3])]));

        let mut known: HashMap<([i64; 3], u64), u32> = HashMap::new();
        for slot in 0..SLOTS_PER_BOX {
            let from = source(slot);
            let mut wanted = [false; ENDS];
            for children in 0..=u8::MAX {
                let cover = covers.and_then(|covers| covers.of(from, children).next());
                let first = cover.unwrap_or(children.trailing_zeros() as usize % CHILDREN);
                ends.first.push(first as u8);
                wanted[first] = true;
            }
            wanted[WHOLE] = parents && from.iter().map(|x| x * x).sum::<i64>() > NEAREST_TO_A_FAMILY;
            for end in (0..ENDS).filter(|&end| wanted[end]) {
                let (center, side) = all.get(end).map_or(([0; 3], 2.0), |d| (d.center, d.side()));
                let number = if end < CHILDREN {
                    between_boxes(center, slot)
                } else {
                    let offset: [i64; 3] = std::array::from_fn(|a| center[a] - from[a]);
                    *known.entry((offset, side.to_bits())).or_insert_with(|| {
                        ends.operators.push([cube(offset, side), cube([0; 3], 1.0)]);
                        ends.operators.len() as u32 - 1
                    })
                };
                ends.numbers[end * SLOTS_PER_BOX + slot] = number;
            }
        }
        if groups {
            ends.of = kinds(&all);
        }
        ends
    }

    /// For each kind of domain, and each child: domain and child as cubes, in sides of the child. Empty without
    /// domains.
    pub fn handed_down(&self) -> Vec<[Cube; 2]> {
        let all = domains();
        let pair = |(i, &domain): (usize, &u32)| {
            let domain = &all[domain as usize];
            [cube(domain.center, domain.side()), cube(all[i % CHILDREN].center, 1.0)]
        };
        self.of.iter().enumerate().map(pair).collect()
    }
}

/// The operator of M2L from the box in a slot to a child with this centre; [`NONE`] if they touch.
fn between_boxes(center: [i64; 3], slot: usize) -> u32 {
    let from = source(slot);
    offset_index(std::array::from_fn(|a| ((center[a] - from[a]) / 2) as i32)).map_or(NONE, |i| i as u32)
}

/// The numbers of the operators of M2L between boxes of a level, for each octant of the target and each slot.
pub(crate) fn plain_numbers(device: &Device) -> Result<Arc<Buffer<u32>>, Error> {
    let of = |child: &Domain| (0..SLOTS_PER_BOX).map(|slot| between_boxes(child.center, slot)).collect::<Vec<_>>();
    let numbers: Vec<u32> = domains()[..CHILDREN].iter().flat_map(of).collect();
    Ok(Arc::new(device.upload(&numbers, "operators of slots")?))
}

/// For each kind of domain the domain that contains each child.
fn kinds(all: &[Domain]) -> Vec<u32> {
    let long = |d: &Domain, a: usize| d.center[a] == 0;
    // Slabs are short along one axis, pairs are long along one axis.
    let of_kind = |kind: usize, d: &Domain| {
        let (pairs, axis) = (kind >= 3, kind % 3);
        (0..3).all(|a| long(d, a) == ((a == axis) == pairs))
    };
    let find = |kind, child: usize| all.iter().position(|d| of_kind(kind, d) && d.members >> child & 1 == 1);
    (0..KINDS * CHILDREN).filter_map(|i| find(i / CHILDREN, i % CHILDREN)).map(|d| d as u32).collect()
}

/// What the kernels read of [`Ends`].
#[derive(Debug)]
pub(crate) struct DeviceM2lEnds {
    numbers: Arc<Buffer<u32>>,
    bytes: [Buffer<u8>; 2],
    /// The addresses of the arrays above.
    table: Buffer<u64>,
    of: Vec<u32>,
    of_groups: Buffer<u32>,
}

/// The M2L edges as items of a table.
#[derive(Debug)]
pub(crate) struct ByEnd {
    pub table: Table,
    /// Locals of domains behind those of the boxes.
    pub more: usize,
    /// Edges from domains to their children, by kind and octant; `None` if no domain receives anything.
    pub down: Option<Arranged>,
}

impl DeviceM2lEnds {
    /// Copies `ends` to the device.
    pub fn new(device: &Device, ends: &M2lEnds) -> Result<Self, Error> {
        let what = "operators of slots";
        let members: Vec<u8> = domains().iter().map(|d| d.members).chain([u8::MAX]).collect();
        let numbers = Arc::new(device.upload(&ends.numbers, what)?);
        let bytes = [device.upload(&ends.first, what)?, device.upload(&members, what)?];
        let table = device.upload(&[numbers.address(), bytes[0].address(), bytes[1].address()], what)?;
        Ok(DeviceM2lEnds { numbers, bytes, table, of: ends.of.clone(), of_groups: device.upload(&ends.of, what)? })
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.numbers.bytes() + self.bytes.iter().map(Buffer::bytes).sum::<u64>()
    }
}

/// M2L edges by family. A family is a box with children; edges end in the children, or in the box as a whole.
struct Families {
    /// The box of each family, in the order in which items are made.
    parents: Buffer<u32>,
    /// For each of these boxes the index of its family in the arrays below; `None` if the order is the same.
    order: Option<Buffer<u32>>,
    /// What `family_edges` writes for `end_table`.
    kept: Buffer<u32>,
    /// For each family a bit for each end that receives an edge.
    used: Buffer<u32>,
    /// Edges without an operator.
    checks: Checks,
}

impl Families {
    /// The order, for a kernel.
    fn order(&self) -> Arg {
        self.order.as_ref().map_or(Arg::NULL, Arg::from)
    }
}

impl Arranger<'_> {
    /// Collects M2L edges by family. A block of M2L translates along each operator that one of its items needs. So families
    /// with the same neighbours lie beside each other, unless V lists are nearly full ([`SORT_BELOW`]).
    fn families(&self, m2l: &DeviceEdges, ends: &DeviceM2lEnds) -> Result<Families, Error> {
        let (device, n, boxes) = (self.device(), self.tree.len(), Arg::from(self.boxes));
        let flags: Buffer<u32> = device.alloc(n, "boxes with children")?;
        let grid = (blocks(n, BLOCK as usize)?, 1);
        // SAFETY: arguments as in arrange.cu; `flags` has an entry for each box.
        unsafe {
            device.launch(&self.functions, "inner_flags", grid, BLOCK, &[boxes, (n as u32).into(), (&flags).into()])?
        };
        let [(Items { boxes: parents, .. }, _)] = self.listed(&[flags])?;
        let families = parents.len();
        let mut keys: Buffer<u64> = device.alloc(families, "neighbours of families")?;
        let (kept, used) =
            (device.alloc(KEPT * families, "M2L edges of families")?, device.alloc(families, "ends of M2L")?);
        let mut all = Families { parents, order: None, kept, used, checks: Checks::new(device)? };
        let args = [
            boxes,
            (&self.tree.boxes.octant).into(),
            (&ends.table).into(),
            (&all.parents).into(),
            (families as u32).into(),
            (&m2l.starts).into(),
            (&m2l.sources).into(),
            (&all.kept).into(),
            (&all.used).into(),
            (&keys).into(),
            all.checks.refused(),
        ];
        let grid = (blocks(families, WARPS)?, 1);
        // SAFETY: as above; all arrays have an entry for each family, and `kept` has as many as a family needs.
        unsafe { device.launch(&self.functions, "family_edges", grid, 32 * WARPS as u32, &args)? };
        if (m2l.len() as f64) < SORT_BELOW * FULL_V_LIST * n as f64 {
            let (mut order, sorted) =
                (device.alloc(families, "order of families")?, device.alloc(families, "families")?);
            self.primitives.sort(&mut keys, &mut order, true, families, 0..PLACES)?;
            let args = [(&all.parents).into(), (&order).into(), (families as u64).into(), (&sorted).into()];
            let grid = (blocks(families, BLOCK as usize)?, 1);
            // SAFETY: as above; the order is a permutation of the families.
            unsafe { device.launch(&self.functions, "take", grid, BLOCK, &args)? };
            (all.parents, all.order) = (sorted, Some(order));
        }
        Ok(all)
    }

    /// The M2L edges by their ends.
    ///
    /// # Errors
    /// [`Error::Edge`] with a box that receives an edge for which there is no operator.
    pub fn by_end(&self, m2l: &DeviceEdges, ends: &DeviceM2lEnds) -> Result<ByEnd, Error> {
        let (device, n) = (self.device(), self.tree.len());
        let (boxes, octants) = (Arg::from(self.boxes), Arg::from(&self.tree.boxes.octant));
        let all = self.families(m2l, ends)?;
        let (families, parents) = (all.parents.len(), &all.parents);
        let count = Arg::from(families as u32);
        let flags: Buffer<u32> = device.alloc(ENDS * families, "ends of M2L")?;
        let places: Buffer<u64> = device.alloc(ENDS * families + 1, "ends of M2L")?;
        let args = [(&all.used).into(), all.order(), count, (&flags).into()];
        // SAFETY: arguments as in arrange.cu; there is a flag for each end of each family.
        unsafe {
            device.launch(&self.functions, "end_flags", (blocks(families, BLOCK as usize)?, 1), BLOCK, &args)?;
        }
        self.primitives.scan([(&flags, &places)], ENDS * families)?;
        let firsts = (0..=ENDS).map(|end| (&places, end * families));
        let mut starts = device.entries(&firsts.chain([(&all.checks.0, 0)]).collect::<Vec<_>>(), "ends of M2L")?;
        Checks::none_refused(&starts.split_off(ENDS + 1))?;
        let items = starts[ENDS] as usize;
        if items == 0 && !m2l.is_empty() {
            let what = "the tree has one box, which has no far sources".to_string();
            return Err(Error::Edge { what, target: 0, source_box: NONE });
        }
        let [rows, owners] = [device.alloc(items, "ends of M2L")?, device.alloc(items, "ends of M2L")?];
        let table = device.zeros(SLOTS_PER_BOX * items, "table of the V list")?;
        let args = [
            boxes,
            octants,
            (&ends.table).into(),
            parents.into(),
            count,
            all.order(),
            (&all.kept).into(),
            (&flags).into(),
            (&places).into(),
            (items as u32).into(),
            (n as u32).into(),
            (&rows).into(),
            (&owners).into(),
            (&table).into(),
        ];
        // SAFETY: as above; the table has an entry for each slot and item.
        unsafe {
            let grid = (blocks(families, TABLE_FAMILIES)?, 1);
            device.launch(&self.functions, "end_table", grid, 32 * TABLE_WARPS as u32, &args)?
        };

        let more = (starts[WHOLE] - starts[CHILDREN]) as usize;
        let down = if more == 0 {
            None
        } else {
            let length = |&domain: &u32| starts[domain as usize + 1] - starts[domain as usize];
            let mut down = vec![0];
            down.extend(ends.of.iter().map(length).scan(0, |sum, n| {
                *sum += n;
                Some(*sum)
            }));
            let edges = down[ends.of.len()] as usize;
            let [from, to] = [device.alloc(edges, "edges")?, device.alloc(edges, "edges")?];
            let device_starts = device.upload(&down, "starts")?;
            let args = [
                boxes,
                octants,
                parents.into(),
                count,
                (&places).into(),
                (&rows).into(),
                (&owners).into(),
                (&device_starts).into(),
                (&ends.of_groups).into(),
                (ends.of.len() as u32).into(),
                (&from).into(),
                (&to).into(),
            ];
            let grid = (blocks(edges, BLOCK as usize)?, 1);
            // SAFETY: as above; a domain receives only if all its children do, so that they exist.
            unsafe { device.launch(&self.functions, "end_members", grid, BLOCK, &args)? };
            Some(Arranged { from, to, starts: down, device_starts })
        };
        let device_starts = device.upload(&starts, "starts")?;
        let numbers = ends.numbers.clone();
        // A box receives as a child of its parent and as the family of its children.
        Ok(ByEnd {
            table: Table {
                boxes: rows,
                starts,
                device_starts,
                groups: ENDS,
                passes: vec![0, WHOLE, ENDS],
                numbers,
                table,
            },
            more,
            down,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fmm_kernels::equivalent::spectra::OFFSETS;

    /// Each kind contains each child once, and the operators are those of the distances between the boxes.
    #[test]
    fn domains_contain_their_children_and_operators_join_their_ends() {
        let all = domains();
        let of = kinds(&all);
        assert_eq!(of.len(), KINDS * CHILDREN);
        for (i, &domain) in of.iter().enumerate() {
            let (kind, child, domain) = (i / CHILDREN, i % CHILDREN, &all[domain as usize]);
            assert_eq!((domain.long(), domain.members >> child & 1), (if kind < 3 { 2 } else { 1 }, 1));
        }
        let mut sorted = of.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted, (8..26).collect::<Vec<u32>>());

        let ends = M2lEnds::new(false, false);
        for (octant, child) in all[..CHILDREN].iter().enumerate() {
            let numbers = (0..SLOTS_PER_BOX).map(|slot| between_boxes(child.center, slot));
            assert!(numbers.eq(ends.numbers[octant * SLOTS_PER_BOX..][..SLOTS_PER_BOX].iter().copied()));
        }
        for (parents, groups) in [(false, false), (true, false), (false, true), (true, true)] {
            let ends = M2lEnds::new(parents, groups);
            let mut count = [0; ENDS];
            for (i, &number) in ends.numbers.iter().enumerate().filter(|(_, number)| **number != NONE) {
                let (end, from) = (i / SLOTS_PER_BOX, source(i % SLOTS_PER_BOX));
                count[end] += 1;
                let (center, side) = all.get(end).map_or(([0; 3], 2.0), |d| (d.center, d.side()));
                let [target, source] = ends.operators[number as usize];
                assert_eq!((target.side, source.side), (side, 1.0));
                for a in 0..3 {
                    assert_eq!(2.0 * (target.center[a] - source.center[a]), (center[a] - from[a]) as f64);
                }
            }
            assert!(count[..8].iter().all(|&n| n == 189));
            assert_eq!(count[WHOLE], if parents { 80 } else { 0 });
            assert!(count[8..WHOLE].iter().all(|&n| (n > 0) == groups));
            assert_eq!(ends.handed_down().len(), if groups { KINDS * CHILDREN } else { 0 });
        }
        assert_eq!(M2lEnds::new(false, false).operators.len(), OFFSETS);
    }
}
