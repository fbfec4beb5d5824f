//! Points as a structure of arrays: padded rows of coordinates, then one row per strength.
//!
//! A coordinate is one number, or a sum of two *pieces*: the nearest f32, and the f32 nearest to the rest. Together
//! they have 49 bits. For the distance of two points, the differences of first and of second pieces are added. The
//! difference of two first pieces that nearly cancel is exact (Sterbenz 1974), so close points keep all 49 bits.

use fmm_traits::Real;
use std::ops::Range;

/// Coordinate rows of the targets of a sum: x, y, z of the first piece, then of the second (empty without a second
/// piece).
pub type Targets<'a, T> = [&'a [T]; 6];

/// Length to whose multiples rows are padded: the scalars of the widest vector.
pub const PAD: usize = 16;
/// Bytes of a cache line.
const CACHE_LINE: usize = 64;

/// `rows` arrays of equal length in one allocation, each starting on a cache line.
#[derive(Debug, Default)]
pub struct Soa<T> {
    data: Vec<T>,
    offset: usize,
    stride: usize,
    rows: usize,
    pieces: usize,
    len: usize,
    /// The usual values of the attributes of a source.
    usual: Vec<T>,
}

impl<T: Real> Soa<T> {
    /// Makes rows of `len` entries, for coordinates of `pieces` pieces and for `strengths` strengths. The allocation
    /// is kept if it is large enough. Contents are unspecified until written.
    pub fn reset(&mut self, pieces: usize, strengths: usize, len: usize) {
        let rows = 3 * pieces + strengths;
        self.rows = rows;
        self.pieces = pieces;
        self.len = len;
        self.stride = len.next_multiple_of(PAD).max(PAD);
        let need = self.stride * rows + CACHE_LINE / size_of::<T>();
        if self.data.len() < need {
            self.data = vec![T::default(); need + need / 4];
            self.offset = self.data.as_ptr().align_offset(CACHE_LINE).min(CACHE_LINE / size_of::<T>());
        }
    }

    /// Entries in each row, padding excluded.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether rows hold nothing but padding.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Pieces of a coordinate: 1 or 2.
    pub fn pieces(&self) -> usize {
        self.pieces
    }

    /// Numbers from the begin of a row to the begin of the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Row `r` with its padding. The rows are x, y, z of the first piece, x, y, z of the second piece, then strengths.
    #[inline(always)]
    pub fn row(&self, r: usize) -> &[T] {
        &self.data[self.offset + r * self.stride..][..self.stride]
    }

    /// As [`row`](Self::row), mutable.
    #[inline(always)]
    pub fn row_mut(&mut self, r: usize) -> &mut [T] {
        &mut self.data[self.offset + r * self.stride..][..self.stride]
    }

    /// Row of strength `c`, with its padding.
    #[inline(always)]
    pub fn strength_mut(&mut self, c: usize) -> &mut [T] {
        self.row_mut(3 * self.pieces + c)
    }

    /// Writes coordinate `a` of the points from `at` on.
    #[inline(always)]
    pub fn place(&mut self, a: usize, at: usize, x: impl ExactSizeIterator<Item = f64> + Clone) {
        for (to, x) in self.row_mut(a)[at..at + x.len()].iter_mut().zip(x.clone()) {
            *to = T::of(x);
        }
        if self.pieces == 2 {
            for (to, x) in self.row_mut(3 + a)[at..at + x.len()].iter_mut().zip(x) {
                *to = T::of(x - T::of(x).f64());
            }
        }
    }

    /// The coordinate rows of `range`, as targets of a sum.
    pub fn targets(&self, range: Range<usize>) -> Targets<'_, T> {
        std::array::from_fn(|r| if r < 3 * self.pieces { &self.row(r)[range.clone()] } else { &[] })
    }

    /// Fills the padding with copies of the first point and zero strengths. Padded entries then contribute nothing. The
    /// attributes, which are the last of each set of `strengths`, have their `usual` values: a kernel may be infinite
    /// for others.
    #[inline(always)]
    pub fn pad(&mut self, strengths: usize, usual: impl ExactSizeIterator<Item = f64>) {
        self.usual.clear();
        self.usual.extend(usual.map(T::of));
        let (len, coordinates, linear) = (self.len, 3 * self.pieces, strengths - self.usual.len());
        for r in 0..self.rows {
            let fill = match r.checked_sub(coordinates) {
                None if len > 0 => self.row(r)[0],
                Some(c) if c % strengths >= linear => self.usual[c % strengths - linear],
                _ => T::default(),
            };
            self.row_mut(r)[len..].fill(fill);
        }
    }

    /// The usual values of the attributes of a source.
    pub fn usual(&self) -> &[T] {
        &self.usual
    }
}
