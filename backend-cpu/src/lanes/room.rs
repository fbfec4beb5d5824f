//! Scratch memory for vectors of any instruction set.

use std::mem::MaybeUninit;

/// Memory as aligned as the widest vector.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [MaybeUninit<u8>; 64]);

/// Memory that outlives a call and serves the vectors of every instruction set: their type is known only where one
/// runs.
#[derive(Default)]
pub struct Room(Vec<Line>);

impl Room {
    /// `len` times `value`. The memory is that of earlier calls wherever it suffices.
    #[inline(always)]
    pub fn filled<V: Copy>(&mut self, value: V, len: usize) -> &mut [V] {
        const { assert!(align_of::<V>() <= align_of::<Line>()) };
        let lines = (len * size_of::<V>()).div_ceil(size_of::<Line>());
        if self.0.len() < lines {
            self.grow(lines);
        }
        // SAFETY: the lines hold `len` values (above) at an address that is aligned for them (asserted), and are
        // borrowed by this function alone; MaybeUninit asks nothing of the bytes.
        let all = unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast::<MaybeUninit<V>>(), len) };
        for x in all.iter_mut() {
            x.write(value);
        }
        // SAFETY: each of them has just been written.
        unsafe { &mut *(std::ptr::from_mut(all) as *mut [V]) }
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        (self.0.capacity() * size_of::<Line>()) as u64
    }

    /// Makes room for so many lines.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, lines: usize) {
        self.0 = vec![Line([MaybeUninit::uninit(); 64]); lines];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_any_type_stand_at_one_place() {
        let mut room = Room::default();
        assert_eq!(room.filled([1.5f64; 8], 100), [[1.5; 8]; 100]);
        let place = room.filled(0u8, 1).as_ptr() as usize;
        assert_eq!(place % 64, 0);
        let floats = room.filled(-2.5f32, 1600);
        assert_eq!((floats.as_ptr() as usize, floats.iter().sum::<f32>()), (place, -4000.0));
        assert!(room.filled(0u64, 0).is_empty());
        assert_eq!(room.filled([7u64; 2], 5000).iter().flatten().sum::<u64>(), 70_000);
    }
}
