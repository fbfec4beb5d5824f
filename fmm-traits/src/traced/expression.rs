//! Expressions of kernel files: a parser by recursive descent that records the operations as it reads.

use super::parse::{FUNCTIONS, Line, MAX_DEPTH, MAX_POWER, Token, error};
use super::{MAX_OPERATIONS, Symbol};
use crate::Error;
use crate::lane::Lane;
use crate::record::{RecordedMask, operations};

/// The value of an expression.
#[derive(Clone, Copy)]
pub(super) enum Term {
    Number(Symbol),
    Mask(RecordedMask),
}

pub(super) struct Parser<'a> {
    pub line: &'a Line,
    pub at: usize,
    pub depth: usize,
    pub names: &'a [(String, Term)],
}

impl Parser<'_> {
    fn wrong<T>(&self, reason: impl Into<String>) -> Result<T, Error> {
        let column = self.line.tokens.get(self.at).map_or(self.line.end, |t| t.1);
        Err(error(self.line.number, column, reason))
    }

    /// Takes the sign or word `s`.
    fn take(&mut self, s: &str) -> bool {
        let found = match self.line.tokens.get(self.at) {
            Some((Token::Sign(sign), _)) => *sign == s,
            Some((Token::Word(word), _)) => word == s,
            _ => false,
        };
        self.at += found as usize;
        found
    }

    fn expect(&mut self, s: &str) -> Result<(), Error> {
        if self.take(s) { Ok(()) } else { self.wrong(format!("expected {s:?}")) }
    }

    /// A number up to the end of the line.
    pub fn whole(&mut self) -> Result<Symbol, Error> {
        let value = self.number()?;
        self.end().map(|()| value)
    }

    pub fn end(&self) -> Result<(), Error> {
        if self.at < self.line.tokens.len() { self.wrong("expected the end of the line") } else { Ok(()) }
    }

    /// An error if there are too many operations.
    fn enough(&self) -> Result<(), Error> {
        match operations() > MAX_OPERATIONS {
            true => self.wrong(format!("more than {MAX_OPERATIONS} operations")),
            false => Ok(()),
        }
    }

    /// An expression that is a number.
    fn number(&mut self) -> Result<Symbol, Error> {
        let at = self.at;
        match self.any()? {
            Term::Number(x) => Ok(x),
            Term::Mask(_) => {
                self.at = at;
                self.wrong("expected a number, found a condition")
            }
        }
    }

    fn mask(&mut self, term: Term, at: usize) -> Result<RecordedMask, Error> {
        match term {
            Term::Mask(m) => Ok(m),
            Term::Number(_) => {
                self.at = at;
                self.wrong("expected a condition, found a number")
            }
        }
    }

    pub fn any(&mut self) -> Result<Term, Error> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.wrong(format!("more than {MAX_DEPTH} expressions inside each other"));
        }
        self.enough()?;
        let at = self.at;
        let mut term = self.all()?;
        while self.take("or") {
            let (a, second) = (self.mask(term, at)?, self.at);
            let b = self.all()?;
            term = Term::Mask(a | self.mask(b, second)?);
        }
        self.depth -= 1;
        Ok(term)
    }

    fn all(&mut self) -> Result<Term, Error> {
        let at = self.at;
        let mut term = self.condition()?;
        while self.take("and") {
            let (a, second) = (self.mask(term, at)?, self.at);
            let b = self.condition()?;
            term = Term::Mask(a & self.mask(b, second)?);
        }
        Ok(term)
    }

    fn condition(&mut self) -> Result<Term, Error> {
        let mut negated = false;
        while self.take("not") {
            negated = !negated;
        }
        let at = self.at;
        let mut term = self.sum()?;
        for sign in ["<=", ">=", "==", "<", ">"] {
            if self.take(sign) {
                let Term::Number(a) = term else { return self.wrong("a condition cannot be compared") };
                let second = self.at;
                let Term::Number(b) = self.sum()? else {
                    self.at = second;
                    return self.wrong("a condition cannot be compared");
                };
                term = Term::Mask(match sign {
                    "<=" => a.le(b),
                    ">=" => b.le(a),
                    "==" => a.eq(b),
                    "<" => a.lt(b),
                    _ => b.lt(a),
                });
                break;
            }
        }
        if negated {
            let mask = self.mask(term, at)?;
            return Ok(Term::Mask(!mask));
        }
        Ok(term)
    }

    fn sum(&mut self) -> Result<Term, Error> {
        let at = self.at;
        let mut term = self.product()?;
        loop {
            let sign = if self.take("+") {
                1
            } else if self.take("-") {
                -1
            } else {
                return Ok(term);
            };
            let (a, second) = (self.plain(term, at)?, self.at);
            let b = self.product()?;
            let b = self.plain(b, second)?;
            self.enough()?;
            term = Term::Number(self.finite(if sign > 0 { a + b } else { a - b }, second)?);
        }
    }

    fn plain(&mut self, term: Term, at: usize) -> Result<Symbol, Error> {
        match term {
            Term::Number(x) => Ok(x),
            Term::Mask(_) => {
                self.at = at;
                self.wrong("expected a number, found a condition")
            }
        }
    }

    fn product(&mut self) -> Result<Term, Error> {
        let at = self.at;
        let mut term = self.signed()?;
        loop {
            let multiply = self.take("*");
            if !multiply && !self.take("/") {
                return Ok(term);
            }
            let (a, second) = (self.plain(term, at)?, self.at);
            let b = self.signed()?;
            let b = self.plain(b, second)?;
            self.enough()?;
            let result = if multiply { a * b } else { self.quotient(a, b, second)? };
            term = Term::Number(self.finite(result, second)?);
        }
    }

    fn quotient(&mut self, a: Symbol, b: Symbol, at: usize) -> Result<Symbol, Error> {
        if b.known() == Some(0.0) {
            self.at = at;
            return self.wrong("division by zero");
        }
        Ok(a / b)
    }

    fn signed(&mut self) -> Result<Term, Error> {
        let mut negative = false;
        loop {
            if self.take("-") {
                negative = !negative;
            } else if !self.take("+") {
                break;
            }
        }
        let at = self.at;
        let mut term = self.atom()?;
        if self.take("^") || self.take("**") {
            self.depth += 1;
            if self.depth > MAX_DEPTH {
                return self.wrong(format!("more than {MAX_DEPTH} expressions inside each other"));
            }
            let base = self.plain(term, at)?;
            let second = self.at;
            let exponent = self.signed()?;
            let exponent = self.plain(exponent, second)?;
            term = Term::Number(self.power(base, exponent, second)?);
            self.depth -= 1;
        }
        if negative {
            let x = self.plain(term, at)?;
            return Ok(Term::Number(-x));
        }
        Ok(term)
    }

    /// base^exponent: by products if the exponent is an integer or half of one, else by logarithms.
    fn power(&mut self, base: Symbol, exponent: Symbol, at: usize) -> Result<Symbol, Error> {
        let Some(e) = exponent.known() else {
            let logarithm = self.finite(base.ln(), at)?;
            return self.finite((exponent * logarithm).exp(), at);
        };
        if 2.0 * e != (2.0 * e).round() || e.abs() > MAX_POWER {
            return self.finite((base.ln() * e).exp(), at);
        }
        let one = Symbol::splat(1.0);
        let root = if e != e.round() { base.sqrt() } else { one };
        let (base, root) = if e < 0.0 {
            let inverse = self.quotient(one, base, at)?;
            (inverse, if e != e.round() { self.quotient(one, root, at)? } else { one })
        } else {
            (base, root)
        };
        let (mut product, mut square, mut n) = (one, base, e.abs().trunc() as u32);
        while n > 0 {
            if n & 1 == 1 {
                product = product * square;
            }
            square = square * square;
            n >>= 1;
        }
        self.finite(product * root, at)
    }

    /// `x`, or an error if it is a constant that is not finite.
    fn finite(&mut self, x: Symbol, at: usize) -> Result<Symbol, Error> {
        if x.known().is_some_and(|x| !x.is_finite()) {
            self.at = at;
            return self.wrong("a constant that is not finite");
        }
        Ok(x)
    }

    fn atom(&mut self) -> Result<Term, Error> {
        let Some((token, _)) = self.line.tokens.get(self.at) else { return self.wrong("expected an expression") };
        match token.clone() {
            Token::Number(x) => {
                self.at += 1;
                Ok(Term::Number(Symbol::splat(x)))
            }
            Token::Sign("(") => {
                self.at += 1;
                let term = self.any()?;
                self.expect(")")?;
                Ok(term)
            }
            Token::Sign(s) => self.wrong(format!("unexpected {s:?}")),
            Token::Word(word) => {
                if FUNCTIONS.contains(&word.as_str()) || word == "where" {
                    return self.call(&word);
                }
                match self.names.iter().find(|(name, _)| *name == word) {
                    Some((_, term)) => {
                        self.at += 1;
                        Ok(*term)
                    }
                    None => self.wrong(format!("unknown name {word}")),
                }
            }
        }
    }

    fn call(&mut self, name: &str) -> Result<Term, Error> {
        let place = self.at;
        self.at += 1;
        self.expect("(")?;
        if name == "where" {
            let at = self.at;
            let condition = self.any()?;
            let condition = self.mask(condition, at)?;
            self.expect(",")?;
            let a = self.number()?;
            self.expect(",")?;
            let b = self.number()?;
            self.expect(")")?;
            return Ok(Term::Number(Symbol::select(condition, a, b)));
        }
        let count = match name {
            "min" | "max" | "pow" => 2,
            "fma" => 3,
            _ => 1,
        };
        let mut args = [Symbol::splat(0.0); 3];
        for (k, arg) in args[..count].iter_mut().enumerate() {
            if k > 0 {
                self.expect(",")?;
            }
            *arg = self.number()?;
        }
        self.expect(")")?;
        let [a, b, c] = args;
        let (zero, one) = (Symbol::splat(0.0), Symbol::splat(1.0));
        let value = match name {
            "sqrt" => a.sqrt(),
            "rsqrt" => a.rsqrt(),
            "exp" => a.exp(),
            "ln" | "log" => a.ln(),
            "sin" => a.sin(),
            "cos" => a.cos(),
            "tan" => a.sin() / a.cos(),
            "sinh" => 0.5 * (a.exp() - (-a).exp()),
            "cosh" => 0.5 * (a.exp() + (-a).exp()),
            // e^(−2|a|) does not overflow.
            "tanh" => {
                let magnitude = Symbol::select(a.lt(zero), -a, a);
                let e = (-2.0 * magnitude).exp();
                let t = (one - e) / (one + e);
                Symbol::select(a.lt(zero), -t, t)
            }
            "erf" => a.erf(),
            "erfc" => one - a.erf(),
            "bessel_k0" => a.bessel_k0(),
            "bessel_k1" => a.bessel_k1(),
            "abs" => Symbol::select(a.lt(zero), -a, a),
            "min" => Symbol::select(a.lt(b), a, b),
            "max" => Symbol::select(a.lt(b), b, a),
            "pow" => self.power(a, b, place)?,
            _ => a.mul_add(b, c),
        };
        self.finite(value, place).map(Term::Number)
    }
}
