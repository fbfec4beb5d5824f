//! 63-bit Morton keys: 21 bits per axis, x in the lowest bit of each octal digit.

/// Tree levels that one key resolves.
pub(crate) const KEY_LEVELS: usize = 21;
/// Bits of a key.
pub(crate) const KEY_BITS: u32 = 63;

/// The grid on which keys are taken: 2^21 cells per axis over one cube.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    corner: [f64; 3],
    /// Cells per unit length.
    density: f64,
}

impl Frame {
    /// Grid over the cube with lower corner `corner` and side `side`.
    pub(crate) fn new(corner: [f64; 3], side: f64) -> Self {
        Frame { corner, density: (1u64 << KEY_LEVELS) as f64 / side }
    }

    /// Key of a point. A point outside the cube gets the key of the nearest cell.
    #[inline]
    pub(crate) fn key(&self, p: [f64; 3]) -> u64 {
        let cell: [u64; 3] = std::array::from_fn(|a| Self::cell((p[a] - self.corner[a]) * self.density));
        interleave(cell)
    }

    /// Key of a point, followed by the key of the point inside its cell. Together they resolve 42 levels.
    pub(crate) fn deep_key(&self, p: [f64; 3]) -> u128 {
        let at: [f64; 3] = std::array::from_fn(|a| (p[a] - self.corner[a]) * self.density);
        let cell = at.map(Self::cell);
        let cells = (1u64 << KEY_LEVELS) as f64;
        let rest = std::array::from_fn(|a| Self::cell((at[a] - cell[a] as f64) * cells));
        (interleave(cell) as u128) << KEY_BITS | interleave(rest) as u128
    }

    /// Cell of a coordinate in units of cells.
    #[inline]
    fn cell(x: f64) -> u64 {
        // A float-to-integer cast saturates: below 0 (and NaN) → 0.
        (x as u64).min((1 << KEY_LEVELS) - 1)
    }
}

/// Key of the cell with these integer coordinates.
#[inline]
fn interleave(cell: [u64; 3]) -> u64 {
    spread(cell[0]) | spread(cell[1]) << 1 | spread(cell[2]) << 2
}

/// Moves bit i of a 21-bit number to bit 3i.
#[inline]
fn spread(x: u64) -> u64 {
    let x = (x | x << 32) & 0x001f_0000_0000_ffff;
    let x = (x | x << 16) & 0x001f_0000_ff00_00ff;
    let x = (x | x << 8) & 0x100f_00f0_0f00_f00f;
    let x = (x | x << 4) & 0x10c3_0c30_c30c_30c3;
    (x | x << 2) & 0x1249_2492_4924_9249
}

/// Octant of a point in its box of level `level`. `key` is relative to the ancestor whose level is the last multiple of
/// 21.
#[inline]
pub(crate) fn octant(key: u64, level: usize) -> usize {
    (key >> (3 * (KEY_LEVELS - 1 - level % KEY_LEVELS))) as usize & 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_moves_each_bit() {
        for i in 0..21 {
            assert_eq!(spread(1 << i), 1 << (3 * i));
        }
        assert_eq!(spread((1 << 21) - 1).count_ones(), 21);
    }

    #[test]
    fn first_octant_is_the_half_of_each_axis() {
        let f = Frame::new([0.0; 3], 2.0);
        assert_eq!(octant(f.key([1.5, 0.5, 0.5]), 0), 1);
        assert_eq!(octant(f.key([0.5, 1.5, 0.5]), 0), 2);
        assert_eq!(octant(f.key([0.5, 0.5, 1.5]), 0), 4);
        assert_eq!(octant(f.key([0.9, 0.0, 0.0]), 1), 1);
        assert_eq!(f.key([-5.0, f64::NAN, -0.0]), 0);
        assert_eq!(f.key([9.0, f64::INFINITY, 2.0]), (1 << 63) - 1);
    }

    #[test]
    fn a_deep_key_is_the_key_and_that_inside_the_cell() {
        let (f, p, cell) = (Frame::new([0.0; 3], 1.0), [0.3, 0.7, 0.1], (-21f64).exp2());
        let corner = p.map(|x| (x / cell).floor() * cell);
        assert_eq!((f.deep_key(p) >> KEY_BITS) as u64, f.key(p));
        assert_eq!(f.deep_key(p) as u64 & ((1 << KEY_BITS) - 1), Frame::new(corner, cell).key(p));
    }
}
