//! Arrays from files: `.npy` of any real type in either memory order, complex columns (as two real ones), or text.
//!
//! This file reads the `.npy` header (NumPy format versions 1 to 3) itself, without a parser of Python literals: only
//! three fields matter, and no file may exhaust stack or memory.

use crate::failure::Failure;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// The rows of an array that one of several ranks reads: number of the rank, number of ranks.
pub type Part = (usize, usize);
/// All rows.
pub const WHOLE: Part = (0, 1);

/// The first row of a part of `rows` rows, and the row after its last.
pub fn part_of(rows: usize, (rank, ranks): Part) -> [usize; 2] {
    [rank, rank + 1].map(|r| (rows as u128 * r as u128 / ranks as u128) as usize)
}

/// Numbers in row-major order. One-dimensional arrays have one column.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// `rows·columns` numbers.
    pub values: Vec<f64>,
    /// Whether the two columns are real and imaginary parts.
    pub complex: bool,
}

/// Reads the array in `path`.
pub fn read(path: &Path) -> Result<Array, Failure> {
    let bytes = std::fs::read(path).map_err(|e| Failure::file(path, e))?;
    let named = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("npy"));
    let array = match bytes.starts_with(MAGIC) {
        true => parse_npy(&bytes),
        false if named => Err("no .npy file: it does not begin as one".into()),
        false => parse_text(&bytes),
    };
    array.map_err(|reason| Failure::file(path, reason))
}

/// Reads some rows of the array in `path`. Of a `.npy` file in row-major order only these rows are read.
pub fn read_part(path: &Path, part: Part) -> Result<Array, Failure> {
    if part == WHOLE {
        return read(path);
    }
    if let Some(rows) = rows_of_npy(path, part).map_err(|reason| Failure::file(path, reason))? {
        return Ok(rows);
    }
    let mut array = read(path)?;
    let [first, end] = part_of(array.rows, part);
    array.values = array.values[first * array.columns..end * array.columns].to_vec();
    array.rows = end - first;
    Ok(array)
}

/// The number of rows of a `.npy` file, from its header; `None` for other files, and for files that cannot be read. A pipe is
/// not read, because that is possible only once.
pub fn rows(path: &Path) -> Option<usize> {
    if !path.metadata().ok()?.is_file() {
        return None;
    }
    let start = start_of_npy(&mut File::open(path).ok()?).ok()??;
    Some(split(&start).ok()?.0.rows)
}

/// The bytes of a `.npy` file up to the end of its header; `None` for other files.
fn start_of_npy(file: &mut File) -> Result<Option<Vec<u8>>, String> {
    let text = |e: std::io::Error| e.to_string();
    let mut start = Vec::new();
    file.by_ref().take(12).read_to_end(&mut start).map_err(text)?;
    if !start.starts_with(MAGIC) {
        return Ok(None);
    }
    let end = header_range(&start)?.end;
    file.by_ref().take((end - start.len().min(end)) as u64).read_to_end(&mut start).map_err(text)?;
    Ok(Some(start))
}

/// Rows of a `.npy` file in row-major order; `None` for other files.
fn rows_of_npy(path: &Path, part: Part) -> Result<Option<Array>, String> {
    let text = |e: std::io::Error| e.to_string();
    let mut file = File::open(path).map_err(text)?;
    let Some(start) = start_of_npy(&mut file)? else { return Ok(None) };
    let end = start.len();
    let (header, _) = split(&start)?;
    if header.fortran && !header.complex {
        return Ok(None);
    }
    let [first, last] = part_of(header.rows, part);
    let row = header.bytes_of_a_row().ok_or("a row is too long")?;
    let (from, length) = ((first as u64).checked_mul(row), ((last - first) as u64).checked_mul(row));
    let (Some(from), Some(length)) = (from.and_then(|from| from.checked_add(end as u64)), length) else {
        return Err("the array is too long".to_string());
    };
    file.seek(SeekFrom::Start(from)).map_err(text)?;
    let mut data = Vec::new();
    file.take(length).read_to_end(&mut data).map_err(text)?;
    let (rows, columns, complex) = (last - first, header.columns, header.complex);
    let values = numbers(header.descr, &data, rows, columns)?;
    Ok(Some(Array { rows, columns, values, complex }))
}

const MAGIC: &[u8] = b"\x93NUMPY";

/// The header of a `.npy` file.
struct Header<'a> {
    /// Type of the elements.
    descr: &'a str,
    fortran: bool,
    rows: usize,
    /// Real numbers in a row.
    columns: usize,
    complex: bool,
}

impl Header<'_> {
    fn bytes_of_a_row(&self) -> Option<u64> {
        let element: u64 = self.descr.get(2..)?.parse().ok()?;
        let elements = if self.complex { 1 } else { self.columns as u64 };
        element.checked_mul(elements)
    }
}

/// Where the text of the header is in a `.npy` file.
fn header_range(bytes: &[u8]) -> Result<std::ops::Range<usize>, String> {
    let cut = "the header is cut off";
    let major = *bytes.get(6).ok_or(cut)?;
    let (start, length): (usize, usize) = if major == 1 {
        (10, u16::from_le_bytes(bytes.get(8..10).and_then(|b| b.try_into().ok()).ok_or(cut)?) as usize)
    } else {
        (12, u32::from_le_bytes(bytes.get(8..12).and_then(|b| b.try_into().ok()).ok_or(cut)?) as usize)
    };
    Ok(start..start.saturating_add(length))
}

/// The header of a `.npy` file, and the bytes after it.
fn split(bytes: &[u8]) -> Result<(Header<'_>, &[u8]), String> {
    let range = header_range(bytes)?;
    let header = bytes.get(range.clone()).ok_or("the header is cut off")?;
    let header = std::str::from_utf8(header).map_err(|_| "the header is not text")?;
    let data = &bytes[range.end..];

    let descr = field(header, "descr")?.trim();
    let descr = descr.strip_prefix(['\'', '"']).ok_or("the element type is not a plain number")?;
    let descr = &descr[..descr.find(['\'', '"']).ok_or("the header has no element type")?];
    let fortran = field(header, "fortran_order")?.trim_start().starts_with("True");
    let shape = field(header, "shape")?.trim_start().strip_prefix('(').ok_or("the shape is no tuple")?;
    let shape = &shape[..shape.find(')').ok_or("the shape is no tuple")?];
    let shape: Vec<usize> = shape
        .split(',')
        .map(str::trim)
        .filter(|s| !s.is_empty())
        .map(|s| s.parse().map_err(|_| format!("the shape has an entry '{s}'")))
        .collect::<Result<_, _>>()?;
    let complex = descr.get(1..2) == Some("c");
    let (rows, columns) = match shape[..] {
        [_, columns] if complex && columns != 1 => {
            return Err(format!("a complex array has {columns} columns, expected 1"));
        }
        // Real and imaginary parts.
        [rows] | [rows, _] if complex => (rows, 2),
        [rows] => (rows, 1),
        [rows, columns] => (rows, columns),
        _ => return Err(format!("the array has {} dimensions, expected 1 or 2", shape.len())),
    };
    Ok((Header { descr, fortran, rows, columns, complex }, data))
}

/// Parses the bytes of a `.npy` file.
fn parse_npy(bytes: &[u8]) -> Result<Array, String> {
    let (Header { descr, fortran, rows, columns, complex }, data) = split(bytes)?;
    let values = numbers(descr, data, rows, columns)?;
    let values = if fortran && !complex { transposed(&values, rows, columns) } else { values };
    Ok(Array { rows, columns, values, complex })
}

/// The text that follows `'name':` in the header.
fn field<'a>(header: &'a str, name: &str) -> Result<&'a str, String> {
    let missing = || format!("the header has no {name}");
    let at = header.find(&format!("'{name}'")).or_else(|| header.find(&format!("\"{name}\""))).ok_or_else(missing)?;
    let rest = &header[at + name.len() + 2..];
    rest.trim_start().strip_prefix(':').ok_or_else(missing)
}

/// `rows`·`columns` numbers of type `descr` as f64.
fn numbers(descr: &str, data: &[u8], rows: usize, columns: usize) -> Result<Vec<f64>, String> {
    let big = match descr.as_bytes().first() {
        Some(b'<' | b'|' | b'=') => false,
        Some(b'>') => true,
        _ => return Err(format!("element type '{descr}' is not a real number")),
    };
    macro_rules! decode {
        ($t:ty, $convert:expr) => {{
            const SIZE: usize = size_of::<$t>();
            let count = rows.checked_mul(columns).filter(|c| c.checked_mul(SIZE).is_some_and(|b| b <= data.len()));
            let count = count.ok_or_else(|| {
                format!("{rows} × {columns} numbers do not fit in the {} bytes of the file", data.len())
            })?;
            let read = |chunk: &[u8]| {
                let mut raw = [0u8; SIZE];
                raw.copy_from_slice(chunk);
                if big { <$t>::from_be_bytes(raw) } else { <$t>::from_le_bytes(raw) }
            };
            Ok(data.chunks_exact(SIZE).take(count).map(|chunk| $convert(read(chunk))).collect())
        }};
    }
    match descr.get(1..) {
        Some("f8" | "c16") => decode!(f64, |x| x),
        Some("f4" | "c8") => decode!(f32, |x| x as f64),
        Some("f2") => decode!(u16, half),
        Some("i1") => decode!(i8, |x| x as f64),
        Some("i2") => decode!(i16, |x| x as f64),
        Some("i4") => decode!(i32, |x| x as f64),
        Some("i8") => decode!(i64, |x| x as f64),
        Some("u1" | "b1") => decode!(u8, |x| x as f64),
        Some("u2") => decode!(u16, |x| x as f64),
        Some("u4") => decode!(u32, |x| x as f64),
        Some("u8") => decode!(u64, |x| x as f64),
        _ => Err(format!("element type '{descr}' is not a real number of 1 to 8 bytes")),
    }
}

/// IEEE half precision: 1 sign, 5 exponent, 10 fraction bits.
fn half(bits: u16) -> f64 {
    let fraction = (bits & 0x3ff) as f64;
    let size = match (bits >> 10) & 31 {
        0 => fraction * (-24f64).exp2(),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        exponent => (1024.0 + fraction) * (exponent as f64 - 25.0).exp2(),
    };
    if bits >> 15 == 1 { -size } else { size }
}

/// Converts column-major to row-major order.
fn transposed(values: &[f64], rows: usize, columns: usize) -> Vec<f64> {
    (0..rows).flat_map(|i| (0..columns).map(move |j| values[j * rows + i])).collect()
}

/// Parses text with one row per line. Commas, semicolons or blanks separate numbers; `#` starts a comment; a first line
/// without numbers is a heading. Text without any number is an error: an empty `.npy` array stands for no points.
fn parse_text(bytes: &[u8]) -> Result<Array, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "neither a .npy file nor text")?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut array = Array { rows: 0, columns: 0, values: Vec::new(), complex: false };
    let mut first = true;
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        if line.is_empty() {
            continue;
        }
        let words = line.split([',', ';', ' ', '\t']).map(str::trim).filter(|w| !w.is_empty());
        let before = array.values.len();
        let heading = std::mem::take(&mut first);
        let mut failed = None;
        for word in words {
            match word.parse::<f64>() {
                Ok(x) => array.values.push(x),
                Err(_) => {
                    failed = Some(word);
                    break;
                }
            }
        }
        if let Some(word) = failed {
            if heading && before == 0 {
                array.values.clear();
                continue;
            }
            let word: String = word.chars().take(40).collect();
            return Err(format!("line {}: '{word}' is not a number", number + 1));
        }
        let found = array.values.len() - before;
        if array.rows == 0 {
            array.columns = found;
        } else if found != array.columns {
            return Err(format!("line {} has {found} numbers, the lines before have {}", number + 1, array.columns));
        }
        array.rows += 1;
    }
    if array.rows == 0 { Err("no line has a number".into()) } else { Ok(array) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    #[test]
    fn both_memory_orders_give_the_same_rows() {
        let c: Vec<u8> = (1..=6).flat_map(|x| (x as f64).to_le_bytes()).collect();
        let f: Vec<u8> = [1, 3, 5, 2, 4, 6].iter().flat_map(|&x| (x as i16).to_be_bytes()).collect();
        let a = parse_npy(&npy("{'descr': '<f8', 'fortran_order': False, 'shape': (3, 2), }", &c)).unwrap();
        let b = parse_npy(&npy("{'descr': '>i2', 'fortran_order': True, 'shape': (3, 2), }", &f)).unwrap();
        assert_eq!(a, b);
        assert_eq!(a.values, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    }

    #[test]
    fn parts_of_a_file_are_the_whole() {
        let folder = tempfile::tempdir().unwrap();
        let c: Vec<u8> = (1..=22).flat_map(|x| (x as f64).to_le_bytes()).collect();
        for (name, header) in [
            ("c.npy", "{'descr': '<f8', 'fortran_order': False, 'shape': (11, 2), }"),
            ("f.npy", "{'descr': '<f8', 'fortran_order': True, 'shape': (11, 2), }"),
            ("i.npy", "{'descr': '>i2', 'fortran_order': False, 'shape': (88,), }"),
            ("z.npy", "{'descr': '<c16', 'fortran_order': False, 'shape': (11,), }"),
            ("short.npy", "{'descr': '<f8', 'fortran_order': False, 'shape': (12, 2), }"),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, npy(header, &c)).unwrap();
            for ranks in [1, 2, 3, 30] {
                let parts: Result<Vec<Array>, Failure> = (0..ranks).map(|r| read_part(&path, (r, ranks))).collect();
                if name == "short.npy" {
                    assert!(parts.is_err());
                    continue;
                }
                let (parts, whole) = (parts.unwrap(), read(&path).unwrap());
                assert_eq!(parts.iter().map(|a| a.rows).sum::<usize>(), whole.rows, "{name} on {ranks}");
                assert_eq!(rows(&path), Some(whole.rows), "{name}");
                assert!(parts.iter().all(|a| a.columns == whole.columns && a.complex == whole.complex));
                assert_eq!(parts.into_iter().flat_map(|a| a.values).collect::<Vec<_>>(), whole.values);
            }
        }
        assert!(read_part(&folder.path().join("nothing.npy"), (0, 2)).is_err());
        let text = folder.path().join("text");
        std::fs::write(&text, "1 2 3").unwrap();
        assert_eq!((rows(&text), rows(&folder.path().join("nothing.npy"))), (None, None));
    }

    #[test]
    fn half_precision() {
        for (bits, x) in [(0x3c00, 1.0), (0xc000, -2.0), (0x0001, (-24f64).exp2()), (0x7bff, 65504.0), (0, 0.0)] {
            assert_eq!(half(bits), x);
        }
        assert!(half(0x7e00).is_nan() && half(0xfc00) == f64::NEG_INFINITY);
    }

    #[test]
    fn wrong_files_are_errors() {
        for header in [
            "{'descr': '<f8', 'fortran_order': False, 'shape': (4000000000000000000, 8), }",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 2, 3), }",
            "{'descr': '<c16', 'fortran_order': False, 'shape': (1, 2), }",
            "{'descr': [('x', '<f8')], 'fortran_order': False, 'shape': (1,), }",
            "{'descr': '<f8', 'shape': (1,), }",
            "{'descr': '', 'fortran_order': False, 'shape': (-1,), }",
            "",
        ] {
            assert!(parse_npy(&npy(header, &[0; 16])).is_err(), "{header}");
        }
        assert!(parse_npy(MAGIC).is_err());
        assert!(parse_text(b"1,2,3\n1,2\n").is_err());
        assert!(parse_text(b"1,2,3\nx,2,3\n").is_err());
        assert!(parse_text(&[0xff, 0xfe, 0]).is_err());
        assert!(parse_text(b"").is_err() && parse_text(b"x,y,z\n# nothing\n").is_err());
    }

    #[test]
    fn text_with_heading_comments_and_blanks() {
        let a = parse_text(b"x, y, z\n1, 2, 3\n\n# nothing\n4 5\t6\r\n").unwrap();
        assert_eq!(a, Array { rows: 2, columns: 3, values: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], complex: false });
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, header in "[ '\"(){}:,<>a-z0-9_]{0,80}") {
            let _ = parse_text(&bytes);
            let _ = parse_npy(&npy(&header, &bytes));
            let mut raw = MAGIC.to_vec();
            raw.extend(&bytes);
            let _ = parse_npy(&raw);
        }
    }
}
