//! The parameters of kernels, read from their sources, and the check of a launch against them.
//!
//! CUDA takes arguments as untyped addresses: a launch with a missing argument, or with an f32 array in place of an f64
//! array, would read whatever is there. So each launch is compared with the declaration of its kernel.

use std::collections::HashMap;

/// The type of a parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Parameter {
    /// Whether the parameter is an address.
    pointer: bool,
    /// The number or the element in Rust's words, for example `u32`; `None` for a struct.
    number: Option<&'static str>,
    /// The declaration.
    text: String,
}

/// The type of an argument on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A number, with its type in Rust.
    Number(&'static str),
    /// An address of elements, with their type in Rust; `None`: an address of the caller, or none.
    Address(Option<&'static str>),
    /// A struct by value.
    Struct,
}

/// The parameters of one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Signature(Vec<Parameter>);

impl Signature {
    /// What is wrong with arguments of these kinds, if anything.
    pub fn refuses(&self, kinds: impl ExactSizeIterator<Item = Kind>) -> Option<String> {
        if kinds.len() != self.0.len() {
            return Some(format!("{} arguments for {} parameters", kinds.len(), self.0.len()));
        }
        let mut pairs = self.0.iter().zip(kinds).enumerate();
        let (i, (parameter, kind)) = pairs.find(|(_, (parameter, kind))| !parameter.takes(*kind))?;
        Some(format!("argument {i} is {kind:?}, and the parameter is `{}`", parameter.text))
    }
}

impl Parameter {
    fn takes(&self, kind: Kind) -> bool {
        match kind {
            Kind::Number(number) => !self.pointer && self.number == Some(number),
            Kind::Address(None) => self.pointer,
            // Structs are filled on the device, or sent as the numbers in them.
            Kind::Address(Some(element)) => self.pointer && self.number.is_none_or(|number| number == scalar(element)),
            Kind::Struct => !self.pointer && self.number.is_none(),
        }
    }

    /// The parameter that `text` declares. Example: `const REAL* x` with REAL defined as `float` is an address of f32.
    fn of(text: &str, definitions: &HashMap<&str, String>) -> Parameter {
        let words = text.replace('*', " * ");
        let mut words: Vec<&str> = words.split_whitespace().filter(|w| !["const", "volatile"].contains(w)).collect();
        // The name.
        words.pop();
        let pointer = words.last() == Some(&"*");
        words.retain(|&word| word != "*");
        let named = words.join(" ");
        let number = match definitions.get(named.as_str()).map_or(named.as_str(), |defined| defined.trim()) {
            "u8" | "unsigned char" => Some("u8"),
            "u32" | "unsigned" => Some("u32"),
            "u64" | "unsigned long long" => Some("u64"),
            "int" => Some("i32"),
            "float" => Some("f32"),
            "double" => Some("f64"),
            "uint2" if pointer => Some("u32"),
            "double2" if pointer => Some("f64"),
            _ => None,
        };
        Parameter { pointer, number, text: text.split_whitespace().collect::<Vec<_>>().join(" ") }
    }
}

/// The type of the numbers in an element. Example: `[u32; 2]` has u32.
fn scalar(element: &str) -> &str {
    element.trim_start_matches('[').split(';').next().unwrap_or(element)
}

/// The signatures of all kernels that a source declares.
pub(super) fn signatures(source: &str) -> HashMap<&str, Signature> {
    let definitions = definitions(source);
    let mut found = HashMap::new();
    for (at, _) in source.match_indices("__global__") {
        let mut rest = &source[at + "__global__".len()..];
        if let Some(bounds) = rest.find("__launch_bounds__").filter(|&b| b < rest.find('(').unwrap_or(0)) {
            let Some(end) = closing(&rest[bounds..]) else { continue };
            rest = &rest[bounds + end + 1..];
        }
        let (Some(open), Some(close)) = (rest.find('('), closing(rest)) else { continue };
        let Some(name) = rest[..open].split_whitespace().last() else { continue };
        let declared = rest[open + 1..close].split(',').flat_map(|text| {
            let defined = definitions.get(text.trim());
            defined.map_or(text, String::as_str).split(',').map(str::trim).filter(|text| !text.is_empty())
        });
        found.insert(name, Signature(declared.map(|text| Parameter::of(text, &definitions)).collect()));
    }
    found
}

/// The position of the parenthesis that closes the first open one.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.char_indices().find_map(|(i, c)| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        (c == ')' && depth == 0).then_some(i)
    })
}

/// The definitions without arguments in a source. A later one replaces an earlier one.
fn definitions(source: &str) -> HashMap<&str, String> {
    let mut found = HashMap::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let Some((name, text)) = line.strip_prefix("#define ").and_then(|rest| rest.trim().split_once(' ')) else {
            continue;
        };
        let mut text = text.to_string();
        while text.ends_with('\\') {
            text.pop();
            text += lines.next().unwrap_or_default();
        }
        found.insert(name, text);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "#define REAL float\n#define BOTH   \\\n  u32 *x0, u32 *x1\n\
        extern \"C\" __global__ void __launch_bounds__(64, f(2))\n    sum(const Boxes* boxes, u32 n,\n  const REAL* q, BOTH, Few few) {\n\
        extern \"C\" __global__ void nothing() {";

    #[test]
    fn a_launch_is_compared_with_the_declaration() {
        let found = signatures(SOURCE);
        assert_eq!(found.len(), 2);
        assert_eq!(found["nothing"].refuses([].into_iter()), None);
        let right = [
            Kind::Address(Some("u64")),
            Kind::Number("u32"),
            Kind::Address(Some("f32")),
            Kind::Address(None),
            Kind::Address(Some("u32")),
            Kind::Struct,
        ];
        let sum = &found["sum"];
        assert_eq!(sum.refuses(right.into_iter()), None);
        let wrong = |at: usize, kind: Kind| {
            let mut kinds = right;
            kinds[at] = kind;
            sum.refuses(kinds.into_iter()).expect("a wrong argument")
        };
        assert!(wrong(1, Kind::Number("u64")).contains("argument 1"));
        assert!(wrong(1, Kind::Address(None)).contains("`u32 n`"));
        assert!(wrong(2, Kind::Address(Some("f64"))).contains("const REAL* q"));
        assert!(wrong(3, Kind::Number("u64")).contains("argument 3"));
        assert!(wrong(5, Kind::Number("u32")).contains("Few few"));
        assert!(sum.refuses(right[..5].iter().copied()).is_some_and(|why| why.contains("5 arguments")));
    }

    #[test]
    fn every_program_declares_its_entries() {
        for program in crate::programs::all_programs() {
            let found = signatures(&program.source);
            let missing: Vec<_> = program.entries.iter().filter(|&&entry| !found.contains_key(entry)).collect();
            assert!(missing.is_empty(), "{}: {missing:?}", program.name);
        }
    }
}
