//! Values as bytes, for messages. All ranks run the same program, so there are no versions.

use fmm_traits::Error;
use std::collections::HashSet;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// Reads values from a message.
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// A reader of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader(bytes)
    }
    fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(short)?;
        self.0 = rest;
        Ok(taken)
    }
}

fn short() -> Error {
    Error::Unsupported { operation: "reading a message of another rank", reason: "it is too short".to_string() }
}

/// A value that travels.
pub trait Wire: Sized {
    /// Appends the value to a message.
    fn put(&self, to: &mut Vec<u8>);
    /// Takes a value from a message.
    ///
    /// # Errors
    /// A message that is too short.
    fn get(from: &mut Reader) -> Result<Self, Error>;
    /// Appends values one behind the other.
    fn put_all(all: &[Self], to: &mut Vec<u8>) {
        all.iter().for_each(|x| x.put(to));
    }
    /// Takes `count` values.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    fn get_all(count: usize, from: &mut Reader) -> Result<Vec<Self>, Error> {
        (0..count).map(|_| Self::get(from)).collect()
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Wire for $number {
            fn put(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_le_bytes());
            }
            fn get(from: &mut Reader) -> Result<Self, Error> {
                let bytes = from.take(size_of::<$number>())?;
                Ok(<$number>::from_le_bytes(bytes.try_into().map_err(|_| short())?))
            }
            // As a whole, which is a copy of memory.
            fn put_all(all: &[Self], to: &mut Vec<u8>) {
                let start = to.len();
                to.resize(start + size_of_val(all), 0);
                let places = to[start..].as_chunks_mut::<{ size_of::<$number>() }>().0;
                places.iter_mut().zip(all).for_each(|(place, x)| *place = x.to_le_bytes());
            }
            fn get_all(count: usize, from: &mut Reader) -> Result<Vec<Self>, Error> {
                let bytes = from.take(count.checked_mul(size_of::<$number>()).ok_or_else(short)?)?;
                let places = bytes.as_chunks::<{ size_of::<$number>() }>().0;
                Ok(places.iter().map(|place| <$number>::from_le_bytes(*place)).collect())
            }
        }
    )*};
}
numbers!(u8, u32, u64, usize, f32, f64);

impl Wire for bool {
    fn put(&self, to: &mut Vec<u8>) {
        to.push(u8::from(*self));
    }
    fn get(from: &mut Reader) -> Result<Self, Error> {
        Ok(u8::get(from)? != 0)
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, to: &mut Vec<u8>) {
        self.len().put(to);
        T::put_all(self, to);
    }
    fn get(from: &mut Reader) -> Result<Self, Error> {
        let count = usize::get(from)?;
        T::get_all(count, from)
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, to: &mut Vec<u8>) {
        self.is_some().put(to);
        self.iter().for_each(|x| x.put(to));
    }
    fn get(from: &mut Reader) -> Result<Self, Error> {
        Ok(if bool::get(from)? { Some(T::get(from)?) } else { None })
    }
}

impl<T: Wire + Default + Copy, const N: usize> Wire for [T; N] {
    fn put(&self, to: &mut Vec<u8>) {
        T::put_all(self, to);
    }
    fn get(from: &mut Reader) -> Result<Self, Error> {
        let mut all = [T::default(); N];
        for x in &mut all {
            *x = T::get(from)?;
        }
        Ok(all)
    }
    fn put_all(all: &[Self], to: &mut Vec<u8>) {
        T::put_all(all.as_flattened(), to);
    }
    fn get_all(count: usize, from: &mut Reader) -> Result<Vec<Self>, Error> {
        let numbers = T::get_all(count.checked_mul(N).ok_or_else(short)?, from)?;
        Ok(numbers.as_chunks::<N>().0.to_vec())
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
        self.1.put(to);
    }
    fn get(from: &mut Reader) -> Result<Self, Error> {
        Ok((A::get(from)?, B::get(from)?))
    }
}

impl Wire for String {
    fn put(&self, to: &mut Vec<u8>) {
        self.len().put(to);
        to.extend_from_slice(self.as_bytes());
    }
    fn get(from: &mut Reader) -> Result<Self, Error> {
        let count = usize::get(from)?;
        Ok(String::from_utf8_lossy(from.take(count)?).into_owned())
    }
}

impl Wire for Arc<str> {
    fn put(&self, to: &mut Vec<u8>) {
        self.to_string().put(to);
    }
    fn get(from: &mut Reader) -> Result<Self, Error> {
        Ok(String::get(from)?.into())
    }
}

/// Texts of errors are few: each is kept once, for ever.
impl Wire for &'static str {
    fn put(&self, to: &mut Vec<u8>) {
        self.to_string().put(to);
    }
    fn get(from: &mut Reader) -> Result<Self, Error> {
        static KNOWN: LazyLock<Mutex<HashSet<&'static str>>> = LazyLock::new(Mutex::default);
        let text = String::get(from)?;
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = known.get(&text[..]) {
            return Ok(text);
        }
        let text: &'static str = Box::leak(text.into_boxed_str());
        known.insert(text);
        Ok(text)
    }
}

impl Wire for Box<Error> {
    fn put(&self, to: &mut Vec<u8>) {
        (**self).put(to);
    }
    fn get(from: &mut Reader) -> Result<Self, Error> {
        Ok(Box::new(Error::get(from)?))
    }
}

/// Errors by number and fields. An error that is not listed travels as its text.
macro_rules! errors {
    ($($number:literal $name:ident { $($field:ident),* })*) => {
        impl Wire for Error {
            fn put(&self, to: &mut Vec<u8>) {
                match self {
                    $(Error::$name { $($field),* } => {
                        to.push($number);
                        $($field.put(to);)*
                    })*
                    other => {
                        to.push(0);
                        other.to_string().put(to);
                    }
                }
            }
            fn get(from: &mut Reader) -> Result<Self, Error> {
                Ok(match u8::get(from)? {
                    $($number => Error::$name { $($field: Wire::get(from)?),* },)*
                    _ => Error::Unsupported { operation: "a step of another rank", reason: String::get(from)? },
                })
            }
        }
    };
}
errors! {
    1 NotFinite { array, row, column, value }
    2 Extent { extent, low, high }
    3 Shape { array, found, expected, why }
    4 Array { array, reason }
    5 Tolerance { tolerance }
    6 ToleranceFloor { tolerance, floor, output, kernel, precision, hint }
    7 ToleranceAndOrder { tolerance, order }
    8 Order { order, min, max }
    9 Parameter { name, value, requirement }
    10 Fact { kernel, fact, stated, r, expected, found }
    11 KernelText { line, column, reason }
    12 UnknownKernel { name, known }
    13 MissingParameter { kernel, name }
    14 UnknownParameter { name, known }
    15 NoOutput {}
    16 UnsupportedOutput { kernel, output, supported }
    17 Unsupported { operation, reason }
    18 Memory { needed, available, what }
    19 TooMany { what, found, limit }
    20 Edge { what, target, source_box }
    21 Cancelled { stage }
    22 Numerical { routine, rows, columns }
    23 Threads { threads, reason }
    24 Io { path, reason }
    25 NoDevice { reason }
    26 DeviceCompile { kernel, log }
    27 Device { call, reason }
    28 Rank { rank, error }
    29 RankLost { rank, reason }
    30 RanksDiffer { what, rank, found, expected }
}
