//! Structure-of-arrays scratch for sources: one padded row per coordinate and per strength.

use fmm_traits::Real;

/// Rows are padded to a multiple of this many scalars, the widest vector.
pub const PAD: usize = 16;
const LINE: usize = 64;

/// `rows` arrays of equal length in one allocation, each starting on a cache line.
#[derive(Debug, Default)]
pub struct Soa<T> {
    data: Vec<T>,
    offset: usize,
    stride: usize,
    rows: usize,
    len: usize,
}

impl<T: Real> Soa<T> {
    /// Makes `rows` rows of `len` entries, keeping the allocation where it suffices. Contents are
    /// unspecified until written.
    pub fn reset(&mut self, rows: usize, len: usize) {
        self.rows = rows;
        self.len = len;
        self.stride = len.next_multiple_of(PAD).max(PAD);
        let need = self.stride * rows + LINE / size_of::<T>();
        if self.data.len() < need {
            self.data = vec![T::default(); need + need / 4];
            self.offset = self.data.as_ptr().align_offset(LINE).min(LINE / size_of::<T>());
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

    /// Row `r` with its padding.
    #[inline(always)]
    pub fn row(&self, r: usize) -> &[T] {
        &self.data[self.offset + r * self.stride..][..self.stride]
    }

    /// Row `r` with its padding.
    #[inline(always)]
    pub fn row_mut(&mut self, r: usize) -> &mut [T] {
        &mut self.data[self.offset + r * self.stride..][..self.stride]
    }

    /// Fills the padding: points repeat the first one, strengths are zero, so that padded entries
    /// contribute nothing.
    #[inline(always)]
    pub fn pad(&mut self) {
        let len = self.len;
        for r in 0..self.rows {
            let row = self.row_mut(r);
            let fill = if r < 3 && len > 0 { row[0] } else { T::default() };
            row[len..].fill(fill);
        }
    }
}
