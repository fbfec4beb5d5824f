//! Operations of a vector that remembers how its value was made, and forgets that in their results.

/// Operators of two vectors of a type with `value` and `of`: `operators!(Product<V>: [V: Lane]; Add add)`.
macro_rules! operators {
    (@one $type:ty: [$($generics:tt)*]; $trait:ident $method:ident) => {
        impl<$($generics)*> $trait for $type {
            type Output = Self;
            #[inline(always)]
            fn $method(self, o: Self) -> Self {
                Self::of(self.value.$method(o.value))
            }
        }
    };
    ($type:ty: $generics:tt; $($trait:ident $method:ident)*) => {
        $(operators!(@one $type: $generics; $trait $method);)*
    };
}

/// Functions of [`Lane`](fmm_traits::Lane).
macro_rules! functions {
    ($($name:ident)*) => {
        $(#[inline(always)]
        fn $name(self) -> Self {
            Self::of(self.value.$name())
        })*
    };
}

/// Comparisons of [`Lane`](fmm_traits::Lane).
macro_rules! comparisons {
    ($($name:ident)*) => {
        $(#[inline(always)]
        fn $name(self, o: Self) -> V::Mask {
            self.value.$name(o.value)
        })*
    };
}

pub(super) use {comparisons, functions, operators};
