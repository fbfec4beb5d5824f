//! 63-bit Morton keys: 21 bits an axis, x in the lowest bit of each octal digit.

/// Levels that one key resolves.
pub(crate) const KEY_LEVELS: usize = 21;
/// Bits of a key.
pub(crate) const KEY_BITS: u32 = 63;

/// The grid of 2^21 cells an axis on which keys are taken.
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

    /// Key of a point; a point outside the cube gets that of the nearest cell.
    #[inline]
    pub(crate) fn key(&self, p: [f64; 3]) -> u64 {
        let last = (1u64 << KEY_LEVELS) - 1;
        // A float-to-integer cast saturates: below 0 (and NaN) → 0.
        let cell = |a: usize| (((p[a] - self.corner[a]) * self.density) as u64).min(last);
        spread(cell(0)) | spread(cell(1)) << 1 | spread(cell(2)) << 2
    }
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

/// Octant, in a box of level `level`, of the point with key `key`, where keys are relative to
/// the ancestor at the last multiple of 21 levels.
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
}
