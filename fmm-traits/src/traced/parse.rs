//! The reader of kernels in text.
#![doc = include_str!("../../../docs/kernel-files.md")]

use super::expression::{Parser, Term};
use super::radial::Radial;
use super::{Base, MAX_DENSITIES, Symbol, Traced};
use crate::kernel::{MAX_PARAMETERS, MAX_POTENTIALS, MAX_STRENGTHS};
use crate::lane::{Lane, dot};
use crate::record::{record_with, with_reciprocal_roots};
use crate::tape::Tape;
use crate::{Error, SelfInteraction};
use std::f64::consts::PI;

/// Largest length of a text in bytes.
const MAX_TEXT: usize = 1 << 16;
/// Largest number of expressions inside each other.
pub(super) const MAX_DEPTH: usize = 64;
/// Largest magnitude of a power that is a product.
pub(super) const MAX_POWER: f64 = 64.0;

pub(super) const FUNCTIONS: [&str; 20] = [
    "sqrt",
    "rsqrt",
    "exp",
    "ln",
    "log",
    "sin",
    "cos",
    "tan",
    "sinh",
    "cosh",
    "tanh",
    "erf",
    "erfc",
    "bessel_k0",
    "bessel_k1",
    "abs",
    "min",
    "max",
    "pow",
    "fma",
];
const STATEMENTS: [&str; 10] =
    ["name", "parameter", "self", "strengths", "densities", "dim", "value", "slope", "curvature", "laplacian"];
const SYMBOLS: [&str; 10] = ["x", "y", "z", "r", "q", "pi", "and", "or", "not", "where"];

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Number(f64),
    Word(String),
    Sign(&'static str),
}

/// A token with its column, from 1.
type Placed = (Token, usize);

/// A line with tokens: its number, and the column behind the last token.
pub(super) struct Line {
    pub number: usize,
    pub end: usize,
    pub tokens: Vec<Placed>,
}

pub(super) fn error(line: usize, column: usize, reason: impl Into<String>) -> Error {
    Error::KernelText { line, column, reason: reason.into() }
}

/// The index of strength `word`: 0 for `q` and `q1`.
fn strength(word: &str) -> Option<usize> {
    match word.strip_prefix('q')? {
        "" => Some(0),
        digit => digit.parse::<usize>().ok().filter(|&k| digit.len() == 1 && k >= 1).map(|k| k - 1),
    }
}

fn reserved(word: &str) -> bool {
    FUNCTIONS.contains(&word) || STATEMENTS.contains(&word) || SYMBOLS.contains(&word) || strength(word).is_some()
}

fn tokens(text: &str, number: usize) -> Result<Line, Error> {
    const SIGNS: [&str; 17] = ["**", "<=", ">=", "==", "+", "-", "*", "/", "^", "(", ")", ",", "<", ">", "=", "[", "]"];
    let chars: Vec<char> = text.chars().collect();
    let (mut at, mut tokens) = (0, Vec::new());
    while at < chars.len() && chars[at] != '#' {
        let c = chars[at];
        if c.is_whitespace() {
            at += 1;
            continue;
        }
        let from = at;
        let word = |at: &mut usize, more: &dyn Fn(char) -> bool| -> String {
            while *at < chars.len() && more(chars[*at]) {
                *at += 1;
            }
            chars[from..*at].iter().collect()
        };
        let token = if c.is_ascii_digit() || c == '.' {
            word(&mut at, &|c| c.is_ascii_digit() || c == '.');
            if at < chars.len() && matches!(chars[at], 'e' | 'E') {
                let sign = at + 1 < chars.len() && matches!(chars[at + 1], '+' | '-');
                if chars.get(at + 1 + sign as usize).is_some_and(char::is_ascii_digit) {
                    at += 1 + sign as usize;
                }
            }
            let digits = word(&mut at, &|c| c.is_ascii_digit());
            match digits.parse::<f64>() {
                Ok(x) if x.is_finite() => Token::Number(x),
                _ => return Err(error(number, from + 1, format!("{digits} is not a number"))),
            }
        } else if c.is_ascii_alphabetic() || c == '_' {
            Token::Word(word(&mut at, &|c| c.is_ascii_alphanumeric() || c == '_'))
        } else {
            let rest = &chars[at..];
            let is = |sign: &&&str| sign.chars().zip(rest).filter(|(a, b)| a == *b).count() == sign.len();
            let Some(sign) = SIGNS.iter().find(is) else {
                return Err(error(number, from + 1, format!("unexpected character {c:?}")));
            };
            at += sign.len();
            Token::Sign(sign)
        };
        tokens.push((token, from + 1));
    }
    Ok(Line { number, end: at + 1, tokens })
}

/// What is declared before the expressions.
#[derive(Default)]
struct Header {
    name: Option<String>,
    parameters: Vec<(String, Option<f64>)>,
    strengths: Option<usize>,
    densities: usize,
    in_plane: bool,
    own: Option<SelfInteraction>,
}

impl Traced {
    /// Reads a kernel from text in the [language](self) of kernel files.
    ///
    /// # Errors
    /// [`Error::KernelText`] with line and column; [`Error::TooMany`] bytes, operations, values or parameters.
    pub fn parse(text: &str) -> Result<Self, Error> {
        Self::read(text, "kernel", false)
    }

    /// Reads a kernel from one expression. Every name that is not known is a parameter without a value
    /// ([`Traced::set`]).
    ///
    /// # Errors
    /// As [`parse`](Traced::parse).
    pub fn expression(text: &str) -> Result<Self, Error> {
        let line = text.lines().count() > 1;
        if line {
            return Err(error(2, 1, "an expression is one line"));
        }
        Self::read(text, "expression", true)
    }

    fn read(text: &str, name: &str, expression: bool) -> Result<Self, Error> {
        super::at_most("bytes of a kernel", text.len(), MAX_TEXT)?;
        let mut lines = Vec::new();
        for (k, line) in text.lines().enumerate() {
            let line = tokens(line, k + 1)?;
            if !line.tokens.is_empty() {
                lines.push(line);
            }
        }
        let (mut header, mut rest) = (Header::default(), Vec::new());
        for mut line in lines {
            let declares = matches!(&line.tokens[0].0, Token::Word(w) if STATEMENTS[..6].contains(&w.as_str()));
            if expression {
                line.tokens.insert(0, (Token::Word("value".to_string()), 1));
            } else if declares && !matches!(line.tokens.get(1), Some((Token::Sign("="), _))) {
                header.take(&line)?;
                continue;
            }
            rest.push(line);
        }
        let words = || {
            rest.iter().flat_map(|l| &l.tokens).filter_map(|(t, _)| if let Token::Word(w) = t { Some(w) } else { None })
        };
        if expression {
            for word in words().filter(|w| !reserved(w)) {
                if header.parameters.iter().all(|(name, _)| name != word) {
                    header.parameters.push((word.clone(), None));
                }
            }
        }
        super::at_most("parameters of a kernel", header.parameters.len(), MAX_PARAMETERS - 1)?;
        let used = words().filter_map(|w| strength(w)).map(|k| k + 1).max();
        let strengths = header.strengths.unwrap_or(used.unwrap_or(1));
        super::at_most("strengths of a kernel", strengths.max(used.unwrap_or(1)), MAX_STRENGTHS)?;
        let radial = strengths == 1 && !words().any(|w| matches!(w.as_str(), "x" | "y" | "z")) && used.is_none();
        let program = Statements { lines: &rest, header: &header, strengths, used: used.is_some(), radial };
        let base = program.record()?;
        let mut made = Traced::of(header.name.as_deref().unwrap_or(name), header.parameters, strengths, base);
        made.own = header.own;
        made.dim = if header.in_plane { 2 } else { 3 };
        if header.in_plane && words().any(|w| w == "z") {
            return Err(error(1, 1, "the plane (`dim 2`) has no z"));
        }
        if header.densities > 1 && !matches!(&*made.body, Base::Radial { .. }) {
            return Err(error(1, 1, "densities are for kernels of r alone"));
        }
        Ok(made)
    }
}

impl Header {
    fn take(&mut self, line: &Line) -> Result<(), Error> {
        let wrong = |k: usize, reason: &str| {
            let column = line.tokens.get(k).map_or(line.end, |t| t.1);
            Err(error(line.number, column, reason))
        };
        let word = |k: usize| match line.tokens.get(k) {
            Some((Token::Word(w), _)) => Some(w.as_str()),
            _ => None,
        };
        let count = line.tokens.len();
        match word(0) {
            Some("name") => match word(1) {
                Some(name) if count == 2 => self.name = Some(name.to_string()),
                _ => return wrong(1, "expected `name` and one word"),
            },
            Some("self") => match word(1) {
                Some("include") if count == 2 => self.own = Some(SelfInteraction::Include),
                Some("skip") if count == 2 => self.own = Some(SelfInteraction::Skip),
                _ => return wrong(1, "expected `self include` or `self skip`"),
            },
            Some("strengths") => match line.tokens.get(1) {
                Some((Token::Number(n), _)) if count == 2 && (1..=MAX_STRENGTHS).any(|k| k as f64 == *n) => {
                    self.strengths = Some(*n as usize);
                }
                _ => return wrong(1, "expected `strengths` and a number from 1 to 9"),
            },
            Some("densities") => match line.tokens.get(1) {
                Some((Token::Number(n), _)) if count == 2 && (1..=MAX_DENSITIES).any(|k| k as f64 == *n) => {
                    self.densities = *n as usize;
                }
                _ => return wrong(1, "expected `densities` and a number from 1 to 4"),
            },
            Some("dim") => match line.tokens.get(1) {
                Some((Token::Number(n), _)) if count == 2 && (*n == 2.0 || *n == 3.0) => self.in_plane = *n == 2.0,
                _ => return wrong(1, "expected `dim 2` or `dim 3`"),
            },
            _ => {
                let Some(name) = word(1) else { return wrong(1, "expected a name") };
                if reserved(name) || self.parameters.iter().any(|(known, _)| known == name) {
                    return wrong(1, &format!("the name {name} is taken"));
                }
                let signs: Vec<&Token> = line.tokens[2..].iter().map(|t| &t.0).collect();
                let value = match signs[..] {
                    [] => None,
                    [Token::Sign("="), Token::Number(x)] => Some(*x),
                    [Token::Sign("="), Token::Sign("-"), Token::Number(x)] => Some(-*x),
                    _ => return wrong(2, "expected `= number` or nothing"),
                };
                self.parameters.push((name.to_string(), value));
            }
        }
        Ok(())
    }
}

/// The statements with expressions.
struct Statements<'a> {
    lines: &'a [Line],
    header: &'a Header,
    strengths: usize,
    /// Whether strengths are used.
    used: bool,
    radial: bool,
}

/// Results of the statements.
#[derive(Default)]
struct Found {
    values: Vec<Symbol>,
    slope: Option<Symbol>,
    curvature: Option<Symbol>,
    laplacians: Vec<Symbol>,
}

impl Statements<'_> {
    fn record(&self) -> Result<Base, Error> {
        let last = self.lines.last().map_or((1, 1), |l| (l.number, l.end));
        if !self.radial {
            let dim = if self.header.in_plane { 2 } else { 3 };
            let take = |p: &[Symbol], r: &[Symbol], q: &[Symbol]| {
                let found = self.run(p, [r[0], r[1], r[2]], dot(&r[..dim], &r[..dim]).sqrt(), q)?;
                if found.slope.is_some() || found.curvature.is_some() || !found.laplacians.is_empty() {
                    return Err(error(last.0, last.1, "slope, curvature and laplacian are for kernels of r alone"));
                }
                let times = if self.used { Symbol::splat(1.0) } else { q[0] };
                Ok(found.values.into_iter().map(|u| u * times).collect())
            };
            let tape = record_with(3, take)?;
            return match tape.values().len() {
                0 => Err(error(last.0, last.1, "there is no value")),
                n => super::at_most("values of a kernel", n, MAX_POTENTIALS).map(|()| Base::General(tape)),
            };
        }
        let tape = |pick: &dyn Fn(&Found) -> Option<Symbol>| -> Result<Option<Tape>, Error> {
            let tape = record_with(1, |p, s, q| {
                let zero = Symbol::splat(0.0);
                let found = self.run(p, [zero; 3], s[0].sqrt(), q)?;
                Ok::<_, Error>(pick(&found).into_iter().collect())
            })?;
            Ok(if tape.values().is_empty() { None } else { Some(tape) })
        };
        let mut counts = [0; 2];
        record_with(1, |p, s, q| {
            let found = self.run(p, [Symbol::splat(0.0); 3], s[0].sqrt(), q)?;
            counts = [found.values.len(), found.laplacians.len()];
            Ok::<_, Error>(Vec::new())
        })?;
        if counts[0] > 1 {
            // Several values of one strength.
            return Statements { radial: false, ..*self }.record();
        }
        super::at_most("laplacians of a kernel", counts[1], 2 * MAX_DENSITIES - 2)?;
        let value = tape(&|f| f.values.first().copied())?.ok_or_else(|| error(last.0, last.1, "there is no value"))?;
        let closed = |found: Option<Tape>| found.as_ref().map(with_reciprocal_roots);
        let laplacians = (0..counts[1]).map(|k| Ok(tape(&|f| f.laplacians.get(k).copied())?.into_iter()));
        let laplacians: Vec<_> = laplacians.collect::<Result<Vec<_>, Error>>()?.into_iter().flatten().collect();
        let (slope, curvature) = (closed(tape(&|f| f.slope)?), closed(tape(&|f| f.curvature)?));
        let f = Radial { value, slope, curvature, laplacians };
        Ok(Base::Radial { f, densities: self.header.densities.max(1) })
    }

    /// Carries out the statements.
    fn run(&self, p: &[Symbol], r: [Symbol; 3], length: Symbol, q: &[Symbol]) -> Result<Found, Error> {
        let [x, y, z] = r;
        let strengths = (0..self.strengths).map(|j| (format!("q{}", j + 1), q[j]));
        let fixed = [("x", x), ("y", y), ("z", z), ("r", length), ("q", q[0]), ("pi", Symbol::splat(PI))];
        let parameters = self.header.parameters.iter().zip(p).map(|((name, _), &p)| (name.clone(), p));
        let all = fixed.into_iter().map(|(name, x)| (name.to_string(), x)).chain(strengths).chain(parameters);
        let mut names: Vec<(String, Term)> = all.map(|(name, x)| (name, Term::Number(x))).collect();
        let mut found = Found::default();
        for line in self.lines {
            let mut parser = Parser { line, at: 1, depth: 0, names: &names };
            let first = &line.tokens[0];
            let twice = || error(line.number, first.1, "given twice");
            match (&first.0, line.tokens.get(1)) {
                (Token::Word(name), Some((Token::Sign("="), _))) => {
                    if reserved(name) || names.iter().any(|(known, _)| known == name) {
                        return Err(error(line.number, first.1, format!("the name {name} is taken")));
                    }
                    parser.at = 2;
                    let term = parser.any()?;
                    parser.end()?;
                    names.push((name.clone(), term));
                }
                (Token::Word(w), _) if w == "value" => found.values.push(parser.whole()?),
                (Token::Word(w), _) if w == "laplacian" => found.laplacians.push(parser.whole()?),
                (Token::Word(w), _) if w == "slope" => {
                    let value = parser.whole()?;
                    found.slope.replace(value).map_or(Ok(()), |_| Err(twice()))?;
                }
                (Token::Word(w), _) if w == "curvature" => {
                    let value = parser.whole()?;
                    found.curvature.replace(value).map_or(Ok(()), |_| Err(twice()))?;
                }
                _ => return Err(error(line.number, first.1, "expected a statement")),
            }
        }
        Ok(found)
    }
}
