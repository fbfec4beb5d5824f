//! Draws of leaves by their weights on the device, for the sample of a probe: `kernels/draw.cu`. The boxes are not copied to
//! the host, which gets the leaves that it asks for. The probe of the crate `fmm` says what is drawn, and why.

use crate::cut::{Cut, within_boxes};
use crate::device::{Arg, Buffer, ByItem, Device};
use crate::lists::each;
use crate::primitives::Flagged;
use fmm_traits::{Cube, Error};
use fmm_tree::Leaf;
use std::ops::Range;

/// Threads per block.
const BLOCK: u32 = 128;
/// Bits of a kind: eight bits each for level, population and traits.
const KIND_BITS: u32 = 24;
/// Columns of a weight in units, 32 bits each.
const COLUMNS: usize = 4;
/// Numbers of a class in the answer of `classes`.
const CLASS_WORDS: usize = 5;
/// Words, and floating-point numbers, of a leaf in the answer of `facts`.
const FACTS: usize = 6;

/// A number for each box of a tree, on the device.
#[derive(Debug)]
pub struct Numbers(pub(crate) Buffer<f64>);

/// For each box, whether its sources are near some chosen leaves, and whether they are close: [`Leaf::near`],
/// [`Leaf::close`].
#[derive(Debug)]
pub struct NearAndClose(Buffer<u32>);

/// The sums of ρ^(2·`half_power`) from which the weights of points are made ([`Cut::corner_sums`]). ρ is the distance of a
/// point from the centre of its leaf, in sides of the leaf.
#[derive(Clone, Copy, Debug)]
pub struct PointWeights<'a> {
    /// Their sum over the points of each leaf.
    pub sums: &'a Numbers,
    /// Their mean over all points; `None`: all points have the weight 1.
    pub mean: Option<f64>,
}

impl PointWeights<'_> {
    fn args(self) -> [Arg; 2] {
        [(&self.sums.0).into(), self.mean.unwrap_or(0.0).into()]
    }
}

/// The arrays from which the optional fields of a [`Leaf`] are filled. Without an array, a field has its neutral value.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeafFields<'a> {
    /// [`Leaf::corners`].
    pub corners: Option<&'a Numbers>,
    /// [`Leaf::factor`].
    pub factors: Option<&'a Numbers>,
    /// [`Leaf::near`] and [`Leaf::close`].
    pub near_and_close: Option<&'a NearAndClose>,
}

/// How the chance with which a leaf is drawn follows from its weight w. A leaf with s sources expects e = w · `share`
/// draws, with close sources e = w · (`share` + `share_of_close`). If it is drawn, it gives m = min(s, max(`of_a_leaf`, ⌈e⌉))
/// sources. Its chance is min(e / m, 1).
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    /// The expected number of draws for each unit of weight.
    pub share: f64,
    /// The number of draws that a close source expects in addition, for each unit of weight.
    pub share_of_close: f64,
    /// The number of sources that a leaf gives at least, if it has them.
    pub of_a_leaf: u32,
    /// Whether all near sources are taken. Their leaves then take no part in the draw.
    pub takes_near: bool,
}

/// Leaves in a row, each as long as its weight in units of 2⁻⁴⁰.
#[derive(Debug)]
pub struct Row {
    /// The leaves; `None`: all boxes.
    boxes: Option<Buffer<u32>>,
    /// The prefix sums of each column of the weights. Their entries i are the sum of the weights before leaf i.
    sums: [Buffer<u64>; COLUMNS],
    /// The classes, in the order of the row.
    pub classes: Vec<Class>,
}

/// A class of leaves, which lie in a row one behind the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Its code.
    pub code: u64,
    /// Where the class begins and ends in the row, in units.
    pub units: Range<u128>,
    /// The indices of its leaves in the row.
    pub leaves: Range<usize>,
    /// Number of targets in its leaves.
    pub targets: u64,
}

/// A weight of two halves.
fn wide(low: u64, high: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

impl Cut<'_> {
    /// A copy of some numbers on the host.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn download(&self, numbers: &Numbers) -> Result<Vec<f64>, Error> {
        self.device.download(&numbers.0, "numbers of boxes")
    }

    /// The kernels of `draw.cu`.
    pub(crate) fn draws(&self) -> Result<ByItem, Error> {
        let (name, program) = self.draws;
        Ok(ByItem::new(self.device, self.device.fixed(name, program)?, BLOCK))
    }

    /// The tree, and the number of its boxes.
    fn all(&self) -> [Arg; 2] {
        [(&self.tree).into(), (self.boxes as u32).into()]
    }

    /// A column for each 32 bits of a weight.
    fn columns(&self) -> Result<[Buffer<u32>; COLUMNS], Error> {
        each(|_| self.device.alloc(self.boxes, "weights of leaves"))
    }

    /// Prefix sums of some columns.
    fn prefix_sums<const K: usize>(&self, columns: &[Buffer<u32>; K]) -> Result<[Buffer<u64>; K], Error> {
        let sums = each(|_| self.device.alloc(self.boxes + 1, "sums of weights"))?;
        self.primitives.scan::<K>(std::array::from_fn(|k| (&columns[k], &sums[k])), self.boxes)?;
        Ok(sums)
    }

    /// The total of each array of weights, from the prefix sums of its four columns.
    fn totals<const K: usize, const ROWS: usize>(&self, sums: &[Buffer<u64>; K]) -> Result<[u128; ROWS], Error> {
        let last = self.device.entries(&sums.each_ref().map(|sums| (sums, self.boxes)), "sums of weights")?;
        let total = |row: &[u64]| row.iter().enumerate().map(|(k, &sum)| u128::from(sum) << (32 * k)).sum();
        Ok(std::array::from_fn(|row| total(&last[COLUMNS * row..COLUMNS * (row + 1)])))
    }

    /// The leaves with targets, by kind: their level, population and traits, as `Kind` of the probe has
    /// it. Each has the weight of its targets times its factor. There are `targets` targets.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn by_kind(&self, corners: PointWeights, factors: Option<&Numbers>, targets: usize) -> Result<Row, Error> {
        let (device, n, kernels, all) = (self.device, self.boxes, self.draws()?, self.all());
        let brief = self.incoming_there()?;
        let (mut edges, mut places): (Buffer<u64>, Buffer<u32>) =
            (device.alloc(n, "edges of leaves")?, device.alloc(n, "order of boxes")?);
        let (leaves, mut kinds): (Buffer<u32>, Buffer<u64>) =
            (device.zeros(1, "number of leaves")?, device.alloc(n, "kinds of leaves")?);
        let (mut boxes, weights, points) =
            (device.alloc(n, "leaves by kind")?, self.columns()?, [device.alloc(n, "targets of leaves")?]);
        let args = [all[0], all[1], (&brief).into(), (&edges).into(), (&leaves).into()];
        // SAFETY: arguments as in draw.cu; each box has an entry in all arrays.
        unsafe { kernels.threads("edges_of_leaves", n, &args)? };
        self.primitives.sort(&mut edges, &mut places, true, n, 0..u32::BITS)?;
        let known = [(&brief).into(), (&edges).into(), (&leaves).into(), (targets as u64).into()];
        let args = [all[0], all[1], known[0], known[1], known[2], known[3], (&kinds).into()];
        // SAFETY: as above.
        unsafe { kernels.threads("kinds", n, &args)? };
        self.primitives.sort(&mut kinds, &mut boxes, true, n, 0..KIND_BITS)?;
        let args = all.into_iter().chain([(&kinds).into(), (&boxes).into()]).chain(corners.args());
        let factors = factors.map_or(Arg::NULL, |factors| (&factors.0).into());
        let to = weights.iter().chain(&points).map(Arg::from);
        let args: Vec<Arg> = args.chain([factors]).chain(to).collect();
        // SAFETY: as above; the leaves are boxes.
        unsafe { kernels.threads("weights_by_kind", n, &args)? };
        let (sums, [targets]) = (self.prefix_sums(&weights)?, self.prefix_sums(&points)?);
        let classes = self.classes(&kernels, &kinds, &sums, &targets)?;
        Ok(Row { boxes: Some(boxes), sums, classes })
    }

    /// The classes of a row whose leaves are sorted by kind.
    fn classes(
        &self,
        kernels: &ByItem,
        kinds: &Buffer<u64>,
        sums: &[Buffer<u64>; COLUMNS],
        targets: &Buffer<u64>,
    ) -> Result<Vec<Class>, Error> {
        // At most so many kinds of three populations and 32 sets of traits.
        let most = 96 * (1 + self.levels);
        let found: Buffer<u64> = self.device.zeros(1 + CLASS_WORDS * most, "classes of leaves")?;
        let args = [kinds.into(), (self.boxes as u32).into()].into_iter().chain(sums.iter().map(Arg::from));
        let args: Vec<Arg> = args.chain([targets.into(), (&found).into()]).collect();
        // SAFETY: arguments as in draw.cu; there is an entry for each kind, and each prefix sum has one for each box and one
        // more.
        unsafe { kernels.threads("classes", self.boxes, &args)? };
        let found = self.device.download(&found, "classes of leaves")?;
        let mut ends: Vec<&[u64]> = found[1..].chunks_exact(CLASS_WORDS).take(found[0] as usize).collect();
        ends.sort_unstable_by_key(|end| end[1]);
        let mut before = (0, 0, 0);
        let class = |end: &[u64]| {
            let here = (wide(end[2], end[3]), end[1] as usize, end[4]);
            let (units, leaves, targets) = std::mem::replace(&mut before, here);
            Class { code: end[0], units: units..here.0, leaves: leaves..here.1, targets: here.2 - targets }
        };
        Ok(ends.into_iter().map(class).collect())
    }

    /// Marks the boxes that are near or close to some leaves.
    ///
    /// # Errors
    /// [`Error::TooMany`] for a box beyond those of the tree, and errors of the device.
    pub fn near_and_close(&self, leaves: &[u32]) -> Result<NearAndClose, Error> {
        within_boxes(self.boxes, leaves)?;
        let (device, n, kernels, all) = (self.device, self.boxes, self.draws()?, self.all());
        let [m2l, p2l, m2p, p2p] = self.edges;
        let kinds = [p2p, m2l, m2p, p2l];
        let (marks, below): (Buffer<u32>, _) = (device.zeros(n, "marks of boxes")?, device.alloc(n, "marks of boxes")?);
        let leaves = device.upload(leaves, "leaves")?;
        let count = leaves.len();
        let args = [all[0], (&leaves).into(), (count as u32).into()].into_iter();
        let args = args.chain(kinds.map(|e| (&e.starts).into())).chain(kinds.map(|e| (&e.sources).into()));
        let args: Vec<Arg> = args.chain([(&marks).into()]).collect();
        // SAFETY: arguments as in draw.cu; the leaves are boxes, and each box has an entry in all arrays.
        unsafe {
            kernels.warps("mark_rows", count, &args)?;
            kernels.threads("mark_below", n, &[all[0], all[1], (&marks).into(), (&below).into()])?;
        }
        Ok(NearAndClose(below))
    }

    /// The sum of the weights of all sources, and that of the close sources, in units of 2⁻⁴⁰.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn weights_of_sources(&self, corners: PointWeights, near_and_close: &NearAndClose) -> Result<[u128; 2], Error> {
        let columns: [Buffer<u32>; 2 * COLUMNS] = each(|_| self.device.alloc(self.boxes, "weights of leaves"))?;
        let args = self.all().into_iter().chain(corners.args()).chain([(&near_and_close.0).into()]);
        let args: Vec<Arg> = args.chain(columns.iter().map(Arg::from)).collect();
        // SAFETY: arguments as in draw.cu; each box has an entry in all arrays.
        unsafe { self.draws()?.threads("weights_of_sources", self.boxes, &args)? };
        self.totals(&self.prefix_sums(&columns)?)
    }

    /// All boxes in a row, of one class. A leaf with sources is as long as its chance. Other boxes, and near leaves if all
    /// near sources are taken, have no length.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn by_chance(
        &self,
        corners: PointWeights,
        near_and_close: &NearAndClose,
        shares: Shares,
    ) -> Result<Row, Error> {
        let columns = self.columns()?;
        let Shares { share, share_of_close, of_a_leaf, takes_near } = shares;
        let shares = [share.into(), share_of_close.into(), of_a_leaf.into(), u32::from(takes_near).into()];
        let args = self.all().into_iter().chain(corners.args()).chain([(&near_and_close.0).into()]).chain(shares);
        let args: Vec<Arg> = args.chain(columns.iter().map(Arg::from)).collect();
        // SAFETY: arguments as in draw.cu; each box has an entry in all arrays.
        unsafe { self.draws()?.threads("chances", self.boxes, &args)? };
        let sums = self.prefix_sums(&columns)?;
        let [all] = self.totals(&sums)?;
        let class = Class { code: 0, units: 0..all, leaves: 0..self.boxes, targets: 0 };
        Ok(Row { boxes: None, sums, classes: vec![class] })
    }

    /// The leaves at some places of a row, in units from its start. All places lie within its classes.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn at(&self, row: &Row, places: &[u128], fields: LeafFields) -> Result<Vec<Leaf>, Error> {
        let (device, count) = (self.device, places.len());
        let places: Vec<u64> = places.iter().flat_map(|&place| [place as u64, (place >> 64) as u64]).collect();
        let (places, boxes) = (device.upload(&places, "places")?, device.alloc::<u32>(count, "drawn leaves")?);
        let of = row.boxes.as_ref().map_or(Arg::NULL, Arg::from);
        let rest = [(self.boxes as u32).into(), of, (&places).into(), (count as u32).into(), (&boxes).into()];
        let args: Vec<Arg> = row.sums.iter().map(Arg::from).chain(rest).collect();
        // SAFETY: arguments as in draw.cu; the row has all boxes, and its sums one entry more.
        unsafe { self.draws()?.threads("drawn", count, &args)? };
        self.leaves((&boxes).into(), count, fields)
    }

    /// The boxes of all classes of a row, in its order.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn leaves_of(&self, row: &Row, fields: LeafFields) -> Result<Vec<Leaf>, Error> {
        let count = row.classes.last().map_or(0, |class| class.leaves.end);
        let all;
        let boxes = match &row.boxes {
            Some(boxes) => boxes,
            None => {
                all = self.primitives.iota(count, "boxes")?;
                &all
            }
        };
        self.leaves(boxes.into(), count, fields)
    }

    /// The leaves whose sources are near, or all leaves with sources, by number.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn leaves_with_sources(
        &self,
        near_and_close: &NearAndClose,
        all: bool,
        fields: LeafFields,
    ) -> Result<Vec<Leaf>, Error> {
        let (device, n, [tree, count]) = (self.device, self.boxes, self.all());
        let flags: Buffer<u32> = device.alloc(n, "leaves with sources")?;
        let args = [tree, count, (&near_and_close.0).into(), u32::from(all).into(), (&flags).into()];
        // SAFETY: arguments as in draw.cu; each box has an entry in all arrays.
        unsafe { self.draws()?.threads("source_leaves", n, &args)? };
        let Flagged { items, count, .. } = self.primitives.flagged(&flags, n, "leaves with sources")?;
        self.leaves((&items).into(), count, fields)
    }

    /// Describes `count` boxes as leaves.
    fn leaves(&self, boxes: Arg, count: usize, fields: LeafFields) -> Result<Vec<Leaf>, Error> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let device: &Device = self.device;
        let (words, numbers): (Buffer<u32>, Buffer<f64>) =
            (device.alloc(FACTS * count, "leaves")?, device.alloc(FACTS * count, "leaves")?);
        let of_numbers = |numbers: Option<&Numbers>| numbers.map_or(Arg::NULL, |numbers| (&numbers.0).into());
        let marks = fields.near_and_close.map_or(Arg::NULL, |near_and_close| (&near_and_close.0).into());
        let of = [(&self.tree).into(), boxes, (count as u32).into(), marks];
        let args = of.into_iter().chain([of_numbers(fields.corners), of_numbers(fields.factors)]);
        let args: Vec<Arg> = args.chain([(&words).into(), (&numbers).into()]).collect();
        // SAFETY: arguments as in draw.cu; there are `count` boxes, and each box has an entry in the arrays of the fields.
        unsafe { self.draws()?.threads("facts", count, &args)? };
        let words: Vec<[u32; FACTS]> = device.download_rows(&words, count, "leaves")?;
        let numbers: Vec<[f64; FACTS]> = device.download_rows(&numbers, count, "leaves")?;
        let leaf = |(words, numbers): ([u32; FACTS], [f64; FACTS])| {
            let ([number, s, s_end, t, t_end, marks], [x, y, z, side, corners, factor]) = (words, numbers);
            Leaf {
                number,
                cube: Cube { center: [x, y, z], side },
                sources: s as usize..s_end as usize,
                targets: t as usize..t_end as usize,
                corners,
                factor,
                near: marks & 1 != 0,
                close: marks & 2 != 0,
            }
        };
        Ok(words.into_iter().zip(numbers).map(leaf).collect())
    }
}
