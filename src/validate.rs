//! Checks of the caller's arrays, each in one pass. An error names the first bad entry.

use fmm_traits::{Error, Number};
use rayon::prelude::*;

/// Smallest number of entries that are worth a thread.
const MIN_ENTRIES: usize = 1 << 14;

/// Largest number of sources or targets: indices are 32-bit, and one value is reserved.
pub(crate) const MAX_POINTS: usize = u32::MAX as usize - 1;

/// An error for the first entry that is not finite. Rows have `columns` entries.
pub(crate) fn finite<T: Number>(array: &'static str, values: &[T], columns: usize) -> Result<(), Error> {
    let number = |x: &T| x.to_f64().unwrap_or(f64::NAN);
    match first_misfit(values, |x| number(x).is_finite()) {
        None => Ok(()),
        Some(i) => Err(Error::NotFinite { array, row: i / columns, column: i % columns, value: number(&values[i]) }),
    }
}

/// The first of some values that does not fit. Each thread looks at all values of a part without a branch between them, so
/// that a processor compares several at once.
pub(crate) fn first_misfit<T: Sync>(values: &[T], fits: impl Fn(&T) -> bool + Sync) -> Option<usize> {
    let parts = values.par_chunks(MIN_ENTRIES).enumerate();
    let (part, of_part) = parts.find_first(|(_, part)| !part.iter().fold(true, |all, x| all & fits(x)))?;
    Some(part * MIN_ENTRIES + of_part.iter().position(|x| !fits(x))?)
}

/// The number of points in a flat N×`dim` array of `length` numbers.
pub(crate) fn count(array: &'static str, length: usize, dim: usize) -> Result<usize, Error> {
    let n = length / dim;
    if !length.is_multiple_of(dim) {
        let why = format!("points are N × {dim}, row-major");
        return Err(Error::Shape { array, found: length, expected: dim * (n + 1), why });
    }
    if n > MAX_POINTS {
        return Err(Error::TooMany { what: array, found: n, limit: MAX_POINTS });
    }
    Ok(n)
}

/// The range of extents of points in which r⁻³, as in Hessians, is a finite number.
const EXTENT_RANGE: [f64; 2] = [1e-100, 1e100];

/// The lower and upper corner of the box around points (`dim` columns); `None` without points.
pub(crate) fn bounds(points: &[f64], dim: usize) -> Option<[[f64; 3]; 2]> {
    let none = [[f64::INFINITY; 3], [f64::NEG_INFINITY; 3]];
    let of = |part: &[f64]| {
        part.chunks_exact(dim).fold(none, |[mut low, mut high], x| {
            for a in 0..dim {
                (low[a], high[a]) = (low[a].min(x[a]), high[a].max(x[a]));
            }
            [low, high]
        })
    };
    let join = |[a, b]: [[f64; 3]; 2], [c, d]: [[f64; 3]; 2]| {
        [std::array::from_fn(|k| a[k].min(c[k])), std::array::from_fn(|k| b[k].max(d[k]))]
    };
    (!points.is_empty()).then(|| points.par_chunks(dim * MIN_ENTRIES).map(of).reduce(|| none, join))
}

/// The largest extent of boxes along an axis. An extent outside [`EXTENT_RANGE`] is an error. The extent is 0 if all
/// points coincide, or without points.
pub(crate) fn extent(boxes: impl Iterator<Item = [[f64; 3]; 2]>, dim: usize) -> Result<f64, Error> {
    let (mut low, mut high) = ([f64::INFINITY; 3], [f64::NEG_INFINITY; 3]);
    for [l, h] in boxes {
        for a in 0..dim {
            (low[a], high[a]) = (low[a].min(l[a]), high[a].max(h[a]));
        }
    }
    let extent = (0..dim).map(|a| high[a] - low[a]).fold(0.0, f64::max);
    let [low, high] = EXTENT_RANGE;
    if extent <= 0.0 || (low..=high).contains(&extent) { Ok(extent) } else { Err(Error::Extent { extent, low, high }) }
}

/// Checks that `values` are `rows` × `columns` numbers.
pub(crate) fn shape(array: &'static str, found: usize, rows: usize, columns: usize, kernel: &str) -> Result<(), Error> {
    let expected = rows * columns;
    if found == expected {
        return Ok(());
    }
    let why = format!("{rows} points × {columns} of kernel {kernel}");
    Err(Error::Shape { array, found, expected, why })
}

/// Checks that `values` are `rows` × `columns` finite numbers.
pub(crate) fn matrix<T: Number>(
    array: &'static str,
    values: &[T],
    rows: usize,
    columns: usize,
    kernel: &str,
) -> Result<(), Error> {
    shape(array, values.len(), rows, columns, kernel)?;
    finite(array, values, columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bad_entry_is_named() {
        let n = 3 * MIN_ENTRIES + 5;
        assert!(finite("strengths", &vec![1.0f32; n], 2).is_ok() && finite::<f64>("strengths", &[], 2).is_ok());
        for first in [0, 1, MIN_ENTRIES - 1, MIN_ENTRIES, n - 1] {
            let mut values = vec![1.0; n];
            values[first..].iter_mut().step_by(7).for_each(|x| *x = f64::NAN);
            let Err(Error::NotFinite { row, column, .. }) = finite("strengths", &values, 2) else { panic!("{first}") };
            assert_eq!(2 * row + column, first);
        }
    }
}
