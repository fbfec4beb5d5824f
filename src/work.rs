//! The necessary work of M2L, as a yardstick of its speed.

use crate::variant::Expansion;

/// Floating-point operations, and the smallest possible memory traffic in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Work {
    pub operations: f64,
    pub bytes: f64,
}

/// The work of `edges` translations between `boxes` boxes, with `wide` bytes per number. Transforms, and empty places
/// in groups of eight, do not count.
///
/// * Equivalent densities and interpolation: a complex product (8 operations) for each of (2p − 1)² p frequencies, each
///   density and each check value. Each spectrum is read or written once.
/// * Spherical harmonics by matrices of p² × p²: 2 operations per entry. By rotations: per degree n, blocks of n + 1
///   cosines and n sines, there and back; and (p − m)² entries for each m, twice for m > 0 (Gumerov & Duraiswami 2008,
///   §2.2.2).
pub(crate) fn m2l(
    expansion: Expansion,
    rotations: bool,
    p: usize,
    [densities, checks]: [usize; 2],
    [boxes, edges]: [usize; 2],
    wide: usize,
) -> Work {
    if edges == 0 {
        return Work::default();
    }
    let (operations, numbers) = match expansion {
        Expansion::Equivalent | Expansion::Interpolation => {
            let frequencies = (2 * p - 1).pow(2) * p;
            (8 * frequencies * densities * checks, 2 * frequencies * (densities + checks))
        }
        Expansion::Spherical if rotations => {
            let blocks: usize = (0..p).map(|n| (n + 1).pow(2) + n.pow(2)).sum();
            let shifts = 2 * (1..=p).map(|k| k.pow(2)).sum::<usize>() - p.pow(2);
            (2 * (2 * blocks + shifts), 2 * p.pow(2))
        }
        Expansion::Spherical => (2 * p.pow(4), 2 * p.pow(2)),
    };
    Work { operations: operations as f64 * edges as f64, bytes: (numbers * wide) as f64 * boxes as f64 }
}
