//! Targets in pieces: a plan whose sums do not fit into memory for all targets at once takes the targets one piece after
//! the other. A piece is a range of targets in tree order that cuts no leaf.

use crate::arrange::{Arranger, BLOCK, Items};
use crate::device::{Arg, Buffer, Device, blocks};
use fmm_traits::Error;
use fmm_traits::tree::NONE;
use std::ops::Range;

/// Share of the memory of a device up to which sums go unasked: the driver takes longer to say how much is free than a
/// small plan takes to be made.
const SMALL_SHARE: u64 = 32;
/// Least share of the free memory that sums get if the arrays of the caller, which come later, would take it all.
const LEAST_SHARE: u64 = 8;
/// Share of the free memory that is left to the driver, which can't give all that it calls free.
const DRIVERS_SHARE: u64 = 32;

/// The pieces of the targets.
#[derive(Debug)]
pub(crate) struct Pieces {
    /// First target of each piece, then the number of targets.
    starts: Vec<usize>,
    /// A leaf belongs to piece i if its first target is one of the targets i·each … (i + 1)·each − 1.
    each: usize,
}

/// Leaves on which a stage works, those of a piece behind each other.
#[derive(Debug)]
pub(crate) struct Leaves {
    pub boxes: Buffer<u32>,
    /// First leaf of each piece, then the number of leaves.
    starts: Vec<usize>,
}

/// The number of targets whose sums, of `row` bytes a target, fit into memory at once: `m` if all do. `room` bytes are
/// needed for arrays that come later.
pub(crate) fn capacity(device: &Device, m: usize, row: usize, room: u64) -> Result<usize, Error> {
    let needed = (m * row) as u64 + room;
    if device.allowance().is_none() && needed <= device.info().memory / SMALL_SHARE {
        return Ok(m);
    }
    let free = device.free_memory()?;
    let left = free - free / DRIVERS_SHARE;
    Ok(if needed <= left { m } else { (left.saturating_sub(room).max(left / LEAST_SHARE) / row as u64) as usize })
}

impl Pieces {
    /// All of some targets.
    pub fn one(targets: Range<usize>) -> Self {
        Pieces { each: targets.end.max(1), starts: vec![targets.start, targets.end] }
    }

    /// Pieces of at most `capacity` targets, with sums of `row` bytes a target.
    ///
    /// # Errors
    /// [`Error::Memory`] if a leaf has more targets, and errors of the device.
    pub fn cut(arranger: &Arranger, capacity: usize, row: usize) -> Result<Self, Error> {
        let (device, targets) = (arranger.device(), arranger.tree.wanted());
        let m = targets.len();
        if m <= capacity {
            return Ok(Pieces::one(targets));
        }
        let (boxes, n) = (Arg::from(arranger.boxes), arranger.tree.len());
        let (grid, largest) = ((blocks(n, BLOCK as usize)?, 1), device.zeros::<u32>(1, "pieces")?);
        // SAFETY: arguments as in arrange.cu.
        unsafe {
            let args = [boxes, (n as u32).into(), (&largest).into()];
            device.launch(&arranger.functions, "largest_leaf", grid, BLOCK, &args)?;
        }
        let largest = device.download(&largest, "pieces")?[0] as usize;
        if largest > capacity {
            let what = format!("the sums of a leaf with {largest} targets");
            let [needed, available] = [largest, capacity].map(|targets| (targets * row) as u64);
            return Err(Error::Memory { needed, available, what });
        }
        // The last leaf of a piece may reach beyond the targets among which leaves begin.
        let most = capacity - largest + 1;
        let count = m.div_ceil(most);
        let each = m.div_ceil(count);
        let firsts = device.nones(count, "pieces")?;
        // SAFETY: as above; there is an entry for each piece.
        unsafe {
            let args = [boxes, (n as u32).into(), (each as u32).into(), (&firsts).into()];
            device.launch(&arranger.functions, "piece_starts", grid, BLOCK, &args)?;
        }
        let mut starts = vec![0; count + 1];
        starts[count] = m;
        for (k, &first) in device.download(&firsts, "pieces")?.iter().enumerate().skip(1).rev() {
            // A piece in which no leaf begins is empty.
            starts[k] = if first == NONE { starts[k + 1] } else { first as usize };
        }
        Ok(Pieces { starts, each })
    }

    /// Number of pieces.
    pub fn count(&self) -> usize {
        self.starts.len() - 1
    }
    /// The targets of a piece.
    pub fn targets(&self, piece: usize) -> Range<usize> {
        self.starts[piece]..self.starts[piece + 1]
    }
    /// Most targets of a piece.
    pub fn most(&self) -> usize {
        (0..self.count()).map(|piece| self.targets(piece).len()).max().unwrap_or(0)
    }
}

impl Leaves {
    /// Leaves in the order of `items`, as one piece.
    pub fn one(items: Items) -> Self {
        let starts = vec![0, items.len()];
        Leaves { boxes: items.boxes, starts }
    }

    /// Sorts the leaves by piece, and those of a piece by falling number of targets, which is rounded up to multiples of
    /// `grain`. Numbers beyond `most` multiples count as equal; with `most` = 0 the order within a piece stays.
    pub fn sort(&mut self, arranger: &Arranger, pieces: &Pieces, [grain, most]: [usize; 2]) -> Result<(), Error> {
        let (device, n, count) = (arranger.device(), self.boxes.len(), pieces.count());
        let different = count * (most + 1);
        if different == 1 {
            self.starts = vec![0, n];
            return Ok(());
        }
        let mut keys = device.alloc(n, "boxes")?;
        let [number, grain, last, each] = [n, grain, most, pieces.each].map(|x| Arg::from(x as u32));
        let args = [arranger.boxes.into(), (&self.boxes).into(), number, grain, last, each, (&keys).into()];
        // SAFETY: arguments as in arrange.cu; `keys` has an entry for each leaf.
        unsafe {
            let grid = (blocks(n, BLOCK as usize)?, 1);
            device.launch(&arranger.functions, "size_keys", grid, BLOCK, &args)?;
        }
        let bits = usize::BITS - (different - 1).leading_zeros();
        arranger.primitives.sort(&mut keys, &mut self.boxes, false, n, 0..bits)?;
        self.starts = match count {
            1 => vec![0, n],
            _ => {
                let starts = device.download(&arranger.starts(&keys, different)?, "pieces")?;
                starts.iter().step_by(most + 1).map(|&start| start as usize).collect()
            }
        };
        Ok(())
    }

    /// First leaf of each piece, then the number of leaves.
    pub fn starts(&self) -> &[usize] {
        &self.starts
    }
    /// Number of leaves.
    pub fn len(&self) -> usize {
        self.boxes.len()
    }
    /// The leaves of a piece, and their number.
    pub fn of(&self, piece: usize) -> (Arg, usize) {
        (self.boxes.at(self.starts[piece]), self.starts[piece + 1] - self.starts[piece])
    }
}
