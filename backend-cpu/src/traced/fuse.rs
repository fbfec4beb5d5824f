//! The operations of a kernel, joined into fewer and larger steps. Each step of the interpreter loads its arguments and
//! stores its result, which costs more than arithmetic. So a result that one operation alone uses should not be stored.

use super::code::{Step, Terms};
use super::simplify::simplified;
use fmm_traits::Tape;
use fmm_traits::tape::{Node, Op};
use std::collections::HashMap;

/// Numbers of a pair that are made together with r, and are no nodes of a tape.
pub const INPUTS: usize = 6;
/// Input k stands among the nodes as `FIRST_INPUT + k`: x, y, z, then [`SQUARE`], [`ROOT`] and [`DISTANCE`].
const FIRST_INPUT: u32 = u32::MAX - INPUTS as u32;
/// The input r·r.
pub const SQUARE: usize = 3;
/// The input 1/|r|; 0 at r = 0.
pub const ROOT: usize = 4;
/// The input |r|.
pub const DISTANCE: usize = 5;

/// The input for which `node` stands.
pub fn input(node: u32) -> Option<usize> {
    node.checked_sub(FIRST_INPUT).map(|k| k as usize)
}

/// Which node stands for an input.
fn node_of(input: usize) -> u32 {
    FIRST_INPUT + input as u32
}

/// A kernel as steps.
pub struct Fused {
    /// The nodes to which steps refer. Those that no step has are uniform or strengths.
    pub nodes: Vec<Node>,
    /// Whether a node is the same for all pairs.
    pub uniform: Vec<bool>,
    /// Results to compute, each after its arguments: the node, how it is computed, and from which nodes or inputs.
    pub steps: Vec<(u32, Step, Vec<u32>)>,
    /// The values.
    pub values: Vec<(Terms, Vec<u32>)>,
}

/// The steps of `tape`; for strength 1 if `unit`.
pub fn fused(tape: &Tape, unit: bool) -> Fused {
    let (nodes, values) = prepared(tape, unit);
    let (nodes, values) = simplified(nodes, values);
    let (mut nodes, values) = live(nodes, values);
    let one = nodes.len() as u32;
    nodes.push(Node { op: Op::Constant(1f64.to_bits()), args: [0; 3] });
    let uniform = uniform(&nodes);
    let graph = Graph { nodes: &nodes, uses: uses(&nodes, &values), uniform: &uniform, one };

    let values: Vec<(Terms, Vec<u32>)> = values.iter().map(|&v| graph.value(v)).collect();
    let mut needed = vec![false; nodes.len()];
    let need = |needed: &mut Vec<bool>, args: &[u32]| {
        args.iter().filter(|&&a| input(a).is_none()).for_each(|&a| needed[a as usize] = true);
    };
    values.iter().for_each(|(_, args)| need(&mut needed, args));
    let mut steps = Vec::new();
    for (i, n) in nodes.iter().enumerate().rev() {
        if needed[i] && !uniform[i] && !matches!(n.op, Op::Strength(_)) {
            let (step, args) = graph.step(i as u32);
            need(&mut needed, &args);
            steps.push((i as u32, step, args));
        }
    }
    steps.reverse();
    Fused { nodes, uniform, steps, values }
}

/// Whether each node is the same for all pairs.
pub fn uniform(nodes: &[Node]) -> Vec<bool> {
    let mut uniform = vec![false; nodes.len()];
    for (i, n) in nodes.iter().enumerate() {
        let args = &n.args[..n.op.arity()];
        let constant = matches!(n.op, Op::Parameter(_) | Op::Constant(_));
        uniform[i] = constant || (!args.is_empty() && args.iter().all(|&a| input(a).is_none() && uniform[a as usize]));
    }
    uniform
}

/// How many operations and values use each node.
fn uses(nodes: &[Node], values: &[u32]) -> Vec<usize> {
    let mut uses = vec![0; nodes.len()];
    let used = nodes.iter().flat_map(|n| &n.args[..n.op.arity()]).chain(values);
    used.filter(|&&a| input(a).is_none()).for_each(|&a| uses[a as usize] += 1);
    uses
}

/// Largest number of operations below one another that become one sum.
const DEPTH: usize = 4;

/// The nodes of a kernel, with what is known of them.
struct Graph<'a> {
    nodes: &'a [Node],
    /// How many operations and values use a node.
    uses: Vec<usize>,
    uniform: &'a [bool],
    /// The node of the constant 1.
    one: u32,
}

/// A product of two nodes or inputs in a sum, and whether it is subtracted.
type Term = (bool, [u32; 2]);

impl Graph<'_> {
    /// The operation of a node that differs from pair to pair, and is used once.
    fn alone(&self, a: u32) -> Option<Node> {
        let known = input(a).is_none() && !self.uniform[a as usize] && self.uses[a as usize] == 1;
        known.then(|| self.nodes[a as usize])
    }

    /// The products whose sum `node` is; none if it is no such sum, or a long one.
    fn terms(&self, node: Node, depth: usize) -> Option<Vec<Term>> {
        if depth == 0 {
            return None;
        }
        let inner = |a: u32| self.alone(a).and_then(|node| self.terms(node, depth - 1));
        let negative = |terms: Vec<Term>| terms.into_iter().map(|(minus, pair)| (!minus, pair)).collect::<Vec<_>>();
        let [x, y, z] = node.args;
        let found = match node.op {
            Op::Mul => vec![(false, [x, y])],
            Op::Fma => [vec![(false, [x, y])], inner(z)?].concat(),
            Op::Add | Op::Sub => {
                let (a, b) = (inner(x), inner(y));
                let whole = |a: u32| vec![(false, [a, self.one])];
                a.as_ref().or(b.as_ref())?;
                let b = b.unwrap_or_else(|| whole(y));
                [a.unwrap_or_else(|| whole(x)), if node.op == Op::Sub { negative(b) } else { b }].concat()
            }
            Op::Neg => negative(inner(x)?),
            _ => return None,
        };
        (found.len() <= Terms::MOST).then_some(found)
    }

    /// The factors of a product, at most four.
    fn factors(&self, node: Node) -> Vec<u32> {
        let mut found = node.args[..2].to_vec();
        while found.len() < Step::MOST_FACTORS {
            let product = |&a: &u32| self.alone(a).filter(|node| node.op == Op::Mul);
            let Some(k) = found.iter().position(|a| product(a).is_some()) else { break };
            let [x, y, _] = self.nodes[found[k] as usize].args;
            found[k] = x;
            found.push(y);
        }
        found
    }

    /// How to compute a node, and from what.
    fn step(&self, a: u32) -> (Step, Vec<u32>) {
        let node = self.nodes[a as usize];
        if node.op == Op::Mul {
            let factors = self.factors(node);
            return (if factors.len() == 2 { Step::One(Op::Mul) } else { Step::Product(factors.len()) }, factors);
        }
        match self.terms(node, DEPTH) {
            Some(terms) => {
                let (terms, args) = ordered(terms);
                (Step::Sum(terms), args)
            }
            None => (Step::One(node.op), node.args[..node.op.arity()].to_vec()),
        }
    }

    /// How to compute a value, and from what.
    fn value(&self, v: u32) -> (Terms, Vec<u32>) {
        match self.alone(v).and_then(|node| self.terms(node, DEPTH)) {
            Some(terms) => ordered(terms),
            None => (Terms { plus: 0, minus: 0 }, vec![v]),
        }
    }
}

/// The numbers of products that are added and subtracted, and their factors in this order.
fn ordered(mut terms: Vec<Term>) -> (Terms, Vec<u32>) {
    terms.sort_by_key(|(minus, _)| *minus);
    let minus = terms.iter().filter(|(minus, _)| *minus).count();
    (Terms { plus: terms.len() - minus, minus }, terms.into_iter().flat_map(|(_, pair)| pair).collect())
}

/// The operations of `tape` and its values, for strength 1 if `unit`, with inputs and with fused multiply-adds. A root
/// becomes a product with the reciprocal root, which vectors compute faster.
fn prepared(tape: &Tape, unit: bool) -> (Vec<Node>, Vec<u32>) {
    let old = tape.nodes();
    let (uses, uniform) = (uses(old, tape.values()), uniform(old));
    let coordinate = |a: u32| match old[a as usize].op {
        Op::Coordinate(axis) => Some(axis),
        _ => None,
    };
    // x·x, with the rest of the sum.
    let squared = |a: u32| {
        let Node { op, args: [x, y, rest] } = old[a as usize];
        match op {
            Op::Fma if x == y => Some((coordinate(x)?, Some(rest))),
            Op::Mul if x == y => Some((coordinate(x)?, None)),
            _ => None,
        }
    };
    let is_square = |a: u32| -> bool {
        let Some((i, Some(rest))) = squared(a) else { return false };
        let Some((j, Some(rest))) = squared(rest) else { return false };
        matches!(squared(rest), Some((k, None)) if i != j && j != k && i != k)
    };
    let (mut nodes, mut moved): (Vec<Node>, Vec<u32>) = (Vec::new(), Vec::new());
    let constant = |x: f64| Node { op: Op::Constant(x.to_bits()), args: [0; 3] };
    let one = (nodes.len() as u32, nodes.push(constant(1.0))).0;
    let square = node_of(SQUARE);
    for (i, n) in old.iter().enumerate() {
        let push = |nodes: &mut Vec<Node>, op, args| {
            nodes.push(Node { op, args });
            nodes.len() as u32 - 1
        };
        let arg = |k: usize| moved[n.args[k] as usize];
        // The factors of argument `k`, if it is a product that nothing else uses.
        let product = |k: usize| {
            let Node { op, args: [a, b, _] } = old[n.args[k] as usize];
            (op == Op::Mul && uses[n.args[k] as usize] == 1).then(|| [moved[a as usize], moved[b as usize]])
        };
        let at = match n.op {
            _ if is_square(i as u32) => square,
            Op::Coordinate(axis) => node_of(axis),
            Op::Strength(_) if unit => one,
            Op::Mul if arg(0) == one => arg(1),
            Op::Mul if arg(1) == one => arg(0),
            Op::Add => match (product(0), product(1)) {
                (Some([a, b]), _) => push(&mut nodes, Op::Fma, [a, b, arg(1)]),
                (_, Some([a, b])) => push(&mut nodes, Op::Fma, [a, b, arg(0)]),
                _ => push(&mut nodes, Op::Add, [arg(0), arg(1), 0]),
            },
            // One division for all pairs.
            Op::Div if uniform[n.args[1] as usize] && !uniform[i] => {
                let inverse = push(&mut nodes, Op::Div, [one, arg(1), 0]);
                push(&mut nodes, Op::Mul, [arg(0), inverse, 0])
            }
            Op::Sqrt if arg(0) == square => node_of(DISTANCE),
            Op::Rsqrt if arg(0) == square => node_of(ROOT),
            Op::Sqrt => {
                let root = push(&mut nodes, Op::Rsqrt, [arg(0), 0, 0]);
                push(&mut nodes, Op::Mul, [arg(0), root, 0])
            }
            op => {
                let mut args = [0; 3];
                (0..op.arity()).for_each(|k| args[k] = arg(k));
                push(&mut nodes, op, args)
            }
        };
        moved.push(at);
    }
    let values = tape.values().iter().map(|&v| moved[v as usize]).collect();
    live(nodes, values)
}

/// The nodes on which a value depends, each once.
fn live(nodes: Vec<Node>, values: Vec<u32>) -> (Vec<Node>, Vec<u32>) {
    let mut used = vec![false; nodes.len()];
    values.iter().filter(|&&v| input(v).is_none()).for_each(|&v| used[v as usize] = true);
    for (i, n) in nodes.iter().enumerate().rev() {
        if used[i] {
            n.args[..n.op.arity()].iter().filter(|&&a| input(a).is_none()).for_each(|&a| used[a as usize] = true);
        }
    }
    let (mut kept, mut moved): (Vec<Node>, Vec<u32>) = (Vec::new(), vec![0; nodes.len()]);
    let mut places: HashMap<Node, u32> = HashMap::new();
    let to = |a: u32, moved: &[u32]| if input(a).is_some() { a } else { moved[a as usize] };
    for (i, n) in nodes.into_iter().enumerate().filter(|(i, _)| used[*i]) {
        let mut node = Node { op: n.op, args: [0; 3] };
        (0..n.op.arity()).for_each(|k| node.args[k] = to(n.args[k], &moved));
        moved[i] = *places.entry(node).or_insert_with(|| {
            kept.push(node);
            kept.len() as u32 - 1
        });
    }
    let values = values.into_iter().map(|v| to(v, &moved)).collect();
    (kept, values)
}
