//! Checks of the caller's arrays, each in one pass. An error names the first bad entry.

use fmm_traits::Error;

/// Largest number of sources or targets: indices are 32-bit, and one value is reserved.
pub(crate) const MAX_POINTS: usize = u32::MAX as usize - 1;

/// An error for the first entry that is not finite. Rows have `columns` entries.
pub(crate) fn finite(array: &'static str, values: &[f64], columns: usize) -> Result<(), Error> {
    match values.iter().position(|v| !v.is_finite()) {
        None => Ok(()),
        Some(i) => Err(Error::NotFinite { array, row: i / columns, column: i % columns, value: values[i] }),
    }
}

/// The number of points in a flat N×`dim` array, after checking its shape and entries.
pub(crate) fn points(array: &'static str, values: &[f64], dim: usize) -> Result<usize, Error> {
    let n = values.len() / dim;
    if !values.len().is_multiple_of(dim) {
        let why = format!("points are N × {dim}, row-major");
        return Err(Error::Shape { array, found: values.len(), expected: dim * (n + 1), why });
    }
    if n > MAX_POINTS {
        return Err(Error::TooMany { what: array, found: n, limit: MAX_POINTS });
    }
    finite(array, values, dim)?;
    Ok(n)
}

/// The range of extents of points in which r⁻³, as in Hessians, is a finite number.
const EXTENT_RANGE: [f64; 2] = [1e-100, 1e100];

/// The extent of points (`dim` columns). An extent outside [`EXTENT_RANGE`] is an error. The extent is 0 if all points
/// coincide, or without points.
pub(crate) fn extent(sources: &[f64], targets: &[f64], dim: usize) -> Result<f64, Error> {
    let mut extent = 0f64;
    for a in 0..dim {
        let column = sources.iter().skip(a).step_by(dim).chain(targets.iter().skip(a).step_by(dim));
        let (low, high) = column.fold((f64::MAX, f64::MIN), |(low, high), &x| (x.min(low), x.max(high)));
        extent = extent.max(high - low);
    }
    let [low, high] = EXTENT_RANGE;
    if extent <= 0.0 || (low..=high).contains(&extent) { Ok(extent) } else { Err(Error::Extent { extent, low, high }) }
}

/// Checks that `values` are `rows` × `columns` finite numbers.
pub(crate) fn matrix(
    array: &'static str,
    values: &[f64],
    rows: usize,
    columns: usize,
    kernel: &str,
) -> Result<(), Error> {
    let expected = rows * columns;
    if values.len() != expected {
        let why = format!("{rows} points × {columns} of kernel {kernel}");
        return Err(Error::Shape { array, found: values.len(), expected, why });
    }
    finite(array, values, columns)
}
