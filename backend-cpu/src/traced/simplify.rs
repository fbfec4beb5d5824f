//! Fewer operations for the same kernel. Derivatives on a tape multiply and add the same factors many times: the
//! derivative of 1/r³ comes as g²·g′ + (g·g′ + g·g′)·g with g = 1/r and g′ = −½·g·(x + x)·g·g, and is −3·g⁵·x.
//!
//! Products are written out as a number times factors, and terms of a sum with the same factors are added. Then factors
//! that several products have in common are multiplied once, the most frequent pair first. Sums are not multiplied out,
//! and keep the order of their terms but for those that are added. Results differ by rounding.

use super::fuse::{input, uniform};
use fmm_traits::tape::{Node, Op};
use std::collections::{BTreeMap, HashMap};

/// Largest number of factors of a product that is written out.
const MOST_FACTORS: usize = 16;
/// Largest number of factors of all products. Longer kernels stay as they are, since the search for pairs takes the
/// square of the number.
const MOST_FACTORS_OF_ALL: usize = 1000;

/// A number times a product of factors, in ascending order.
#[derive(Clone, PartialEq, Debug)]
struct Term {
    number: f64,
    factors: Vec<usize>,
}

/// What a product can have as a factor.
enum Factor {
    /// A node that is the same for all pairs, an input or a strength.
    Given(u32),
    /// Another operation than +, −, ·.
    Apply(Op, Vec<Term>),
    Sum(Vec<Term>),
    /// A product of a number and factors that are the same for all pairs.
    Uniform(f64, Vec<usize>),
    Pair([usize; 2]),
}

/// The operations `nodes` and `values`, simplified. Arguments stand before the operations that use them.
pub fn simplified(nodes: Vec<Node>, values: Vec<u32>) -> (Vec<Node>, Vec<u32>) {
    let mut kernel = Products::new(&nodes, &values);
    if kernel.terms().map(|term| term.factors.len()).sum::<usize>() > MOST_FACTORS_OF_ALL {
        return (nodes, values);
    }
    kernel.join_uniform();
    kernel.join_pairs();
    kernel.operations(&nodes)
}

/// A kernel as sums of products.
struct Products {
    factors: Vec<Factor>,
    /// Whether each factor is the same for all pairs.
    uniform: Vec<bool>,
    values: Vec<Term>,
}

impl Products {
    fn new(nodes: &[Node], values: &[u32]) -> Self {
        let uniform = uniform(nodes);
        let mut kernel = Products { factors: Vec::new(), uniform: Vec::new(), values: Vec::new() };
        let mut inputs: HashMap<u32, Term> = HashMap::new();
        let mut terms: Vec<Term> = Vec::with_capacity(nodes.len());
        for (i, node) in nodes.iter().enumerate() {
            let args = &node.args[..node.op.arity()];
            for &a in args.iter().filter(|&&a| input(a).is_some()) {
                inputs.entry(a).or_insert_with(|| kernel.alone(Factor::Given(a), false));
            }
            let arg = |k: usize| inputs.get(&args[k]).unwrap_or_else(|| &terms[args[k] as usize]).clone();
            let term = match node.op {
                Op::Constant(bits) if f64::from_bits(bits).is_normal() => {
                    Term { number: f64::from_bits(bits), factors: Vec::new() }
                }
                _ if uniform[i] => kernel.alone(Factor::Given(i as u32), true),
                Op::Strength(_) => kernel.alone(Factor::Given(i as u32), false),
                Op::Mul => kernel.product(arg(0), arg(1)),
                Op::Neg => negative(arg(0)),
                Op::Add => kernel.sum(vec![arg(0), arg(1)]),
                Op::Sub => kernel.sum(vec![arg(0), negative(arg(1))]),
                Op::Fma => {
                    let product = kernel.product(arg(0), arg(1));
                    kernel.sum(vec![product, arg(2)])
                }
                op => kernel.alone(Factor::Apply(op, (0..args.len()).map(arg).collect()), false),
            };
            terms.push(term);
        }
        for &v in values {
            let term = match input(v) {
                Some(_) => inputs.entry(v).or_insert_with(|| kernel.alone(Factor::Given(v), false)).clone(),
                None => terms[v as usize].clone(),
            };
            kernel.values.push(term);
        }
        kernel
    }

    fn add(&mut self, factor: Factor, uniform: bool) -> usize {
        self.factors.push(factor);
        self.uniform.push(uniform);
        self.factors.len() - 1
    }

    /// A factor as a term.
    fn alone(&mut self, factor: Factor, uniform: bool) -> Term {
        Term { number: 1.0, factors: vec![self.add(factor, uniform)] }
    }

    fn product(&mut self, a: Term, b: Term) -> Term {
        let number = a.number * b.number;
        if a.factors.len() + b.factors.len() > MOST_FACTORS || !number.is_normal() {
            return self.alone(Factor::Apply(Op::Mul, vec![a, b]), false);
        }
        let mut factors = [a.factors, b.factors].concat();
        factors.sort_unstable();
        Term { number, factors }
    }

    /// A sum; a single term if its terms have the same factors. Terms that cancel stay, because they may be infinite.
    fn sum(&mut self, terms: Vec<Term>) -> Term {
        let mut found: Vec<Term> = Vec::with_capacity(terms.len());
        for term in terms {
            let like = found.iter_mut().find(|t| t.factors == term.factors && (t.number + term.number).is_normal());
            match like {
                Some(like) => like.number += term.number,
                None => found.push(term),
            }
        }
        if found.len() == 1 { found.remove(0) } else { self.alone(Factor::Sum(found), false) }
    }

    fn terms(&self) -> impl Iterator<Item = &Term> {
        let of_factors = self.factors.iter().flat_map(|factor| match factor {
            Factor::Apply(_, terms) | Factor::Sum(terms) => terms.as_slice(),
            _ => &[],
        });
        of_factors.chain(&self.values)
    }

    fn terms_mut<'a>(factors: &'a mut [Factor], values: &'a mut [Term]) -> impl Iterator<Item = &'a mut Term> {
        let of_factors = factors.iter_mut().flat_map(|factor| match factor {
            Factor::Apply(_, terms) | Factor::Sum(terms) => terms.as_mut_slice(),
            _ => &mut [],
        });
        of_factors.chain(values)
    }

    /// Joins the number and the uniform factors of each product to one factor. The sign remains.
    fn join_uniform(&mut self) {
        let mut known: HashMap<(u64, Vec<usize>), usize> = HashMap::new();
        let mut made = Vec::new();
        let first = self.factors.len();
        for term in Self::terms_mut(&mut self.factors, &mut self.values) {
            let (uniform, mut varying): (Vec<usize>, Vec<usize>) = term.factors.iter().partition(|&&f| self.uniform[f]);
            let size = term.number.abs();
            let joined = match uniform[..] {
                [] if size == 1.0 && !varying.is_empty() => continue,
                [one] if size == 1.0 => one,
                _ => *known.entry((size.to_bits(), uniform.clone())).or_insert_with(|| {
                    made.push(Factor::Uniform(size, uniform));
                    first + made.len() - 1
                }),
            };
            varying.push(joined);
            varying.sort_unstable();
            *term = Term { number: term.number.signum(), factors: varying };
        }
        self.uniform.extend(made.iter().map(|_| true));
        self.factors.extend(made);
    }

    /// Makes a factor of each pair of factors that several products have.
    fn join_pairs(&mut self) {
        loop {
            let mut counts: BTreeMap<[usize; 2], usize> = BTreeMap::new();
            for term in self.terms().filter(|term| term.factors.len() > 1) {
                let f = &term.factors;
                let mut pairs: Vec<[usize; 2]> =
                    (0..f.len()).flat_map(|i| (i + 1..f.len()).map(move |j| [f[i], f[j]])).collect();
                pairs.sort_unstable();
                pairs.dedup();
                pairs.into_iter().for_each(|pair| *counts.entry(pair).or_default() += 1);
            }
            // Of pairs with the same count the first one.
            let Some((&pair, _)) = counts.iter().rev().max_by_key(|(_, count)| **count).filter(|(_, n)| **n > 1) else {
                return;
            };
            let joined = self.add(Factor::Pair(pair), false);
            for term in Self::terms_mut(&mut self.factors, &mut self.values) {
                let both = |f: &[usize]| {
                    let i = f.iter().position(|&x| x == pair[0])?;
                    let j = f.iter().rposition(|&x| x == pair[1])?;
                    (i != j).then_some([i, j])
                };
                while let Some([i, j]) = both(&term.factors) {
                    term.factors.remove(i.max(j));
                    term.factors.remove(i.min(j));
                    term.factors.push(joined);
                }
            }
        }
    }

    /// The kernel as operations again.
    fn operations(&self, nodes: &[Node]) -> (Vec<Node>, Vec<u32>) {
        let mut made = Operations { kernel: self, nodes: Vec::new(), places: vec![None; self.factors.len()] };
        // Uniform nodes as they were, with the uniform nodes that they use.
        let mut moved = vec![0; nodes.len()];
        let uniform = uniform(nodes);
        for (i, node) in nodes.iter().enumerate() {
            if uniform[i] || matches!(node.op, Op::Strength(_)) {
                let mut args = node.args;
                args[..node.op.arity()].iter_mut().for_each(|a| *a = moved[*a as usize]);
                moved[i] = made.push(node.op, args);
            }
        }
        for (f, factor) in self.factors.iter().enumerate() {
            made.places[f] = match factor {
                Factor::Given(a) if input(*a).is_some() => Some(*a),
                Factor::Given(a) => Some(moved[*a as usize]),
                Factor::Apply(op, terms) => {
                    let mut args = [0; 3];
                    terms.iter().zip(&mut args).for_each(|(term, arg)| *arg = made.term(term));
                    Some(made.push(*op, args))
                }
                Factor::Sum(terms) => Some(made.sum(terms)),
                // When it is first used.
                Factor::Uniform(..) | Factor::Pair(_) => continue,
            };
        }
        let values = self.values.iter().map(|term| made.term(term)).collect();
        (made.nodes, values)
    }
}

fn negative(term: Term) -> Term {
    Term { number: -term.number, ..term }
}

/// The operations of a kernel, as they are made.
struct Operations<'a> {
    kernel: &'a Products,
    nodes: Vec<Node>,
    /// The node or input of each factor, once it is made.
    places: Vec<Option<u32>>,
}

impl Operations<'_> {
    fn push(&mut self, op: Op, args: [u32; 3]) -> u32 {
        self.nodes.push(Node { op, args });
        self.nodes.len() as u32 - 1
    }

    fn constant(&mut self, x: f64) -> u32 {
        self.push(Op::Constant(x.to_bits()), [0; 3])
    }

    fn factor(&mut self, f: usize) -> u32 {
        if let Some(place) = self.places[f] {
            return place;
        }
        let place = match &self.kernel.factors[f] {
            Factor::Pair(pair) => {
                let [a, b] = pair.map(|f| self.factor(f));
                self.push(Op::Mul, [a, b, 0])
            }
            Factor::Uniform(number, factors) => {
                let mut product =
                    if *number == 1.0 && !factors.is_empty() { None } else { Some(self.constant(*number)) };
                for &f in factors {
                    let next = self.factor(f);
                    product = Some(product.map_or(next, |product| self.push(Op::Mul, [product, next, 0])));
                }
                product.unwrap_or(0)
            }
            // These are made in order, before anything uses them.
            Factor::Given(_) | Factor::Apply(..) | Factor::Sum(_) => 0,
        };
        self.places[f] = Some(place);
        place
    }

    /// The product of a term without its sign, as two factors if it has so many.
    fn factors(&mut self, term: &Term) -> (u32, Option<u32>) {
        let mut places: Vec<u32> = term.factors.iter().map(|&f| self.factor(f)).collect();
        while places.len() > 2 {
            let (Some(a), Some(b)) = (places.pop(), places.pop()) else { break };
            let product = self.push(Op::Mul, [b, a, 0]);
            places.push(product);
        }
        (places[0], places.get(1).copied())
    }

    /// A term with its sign.
    fn term(&mut self, term: &Term) -> u32 {
        let sign = term.number < 0.0;
        match self.factors(term) {
            (a, None) if sign => {
                let minus = self.constant(-1.0);
                self.push(Op::Mul, [a, minus, 0])
            }
            (a, None) => a,
            (a, Some(b)) => {
                let product = self.push(Op::Mul, [a, b, 0]);
                if sign { self.push(Op::Neg, [product, 0, 0]) } else { product }
            }
        }
    }

    /// A sum that begins with a term that is not negative, if there is one.
    fn sum(&mut self, terms: &[Term]) -> u32 {
        let first = terms.iter().position(|term| term.number > 0.0).unwrap_or(0);
        let mut sum = self.term(&terms[first]);
        for term in terms.iter().enumerate().filter(|(k, _)| *k != first).map(|(_, term)| term) {
            let negative = term.number < 0.0;
            sum = match self.factors(term) {
                (a, Some(b)) if negative => {
                    let product = self.push(Op::Mul, [a, b, 0]);
                    self.push(Op::Sub, [sum, product, 0])
                }
                (a, Some(b)) => self.push(Op::Fma, [a, b, sum]),
                (a, None) if negative => self.push(Op::Sub, [sum, a, 0]),
                (a, None) => self.push(Op::Add, [sum, a, 0]),
            };
        }
        sum
    }
}
