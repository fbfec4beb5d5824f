//! A kernel prepared for a loop over pairs that carries out its operations one after the other.
//!
//! Results that depend on parameters alone are computed once per call. r·r is made together with r. A product that is
//! only added becomes a fused multiply-add, also where it is added to the sums. A kernel of one strength is evaluated
//! for strength 1, and multiplied by the strength as it is added to the sums.

use fmm_traits::tape::{Node, Op};
use fmm_traits::{Member, Tape};
use std::collections::HashMap;

/// Where an operation finds an argument.
#[derive(Clone, Copy, Debug)]
pub enum Operand {
    /// The block with this number.
    Block(usize),
    /// A number that is the same for all pairs.
    Scalar(usize),
    /// A strength of the source.
    Strength(usize),
}

/// An operation on blocks.
#[derive(Clone, Copy, Debug)]
pub struct Instruction {
    pub op: Op,
    pub args: [Operand; 3],
    pub to: usize,
}

/// A kernel in the form in which the loop carries it out.
#[derive(Debug)]
pub struct Code {
    /// The numbers that are the same for all pairs.
    pub scalars: Tape,
    /// The blocks of the coordinates x, y, z, and of r·r, as far as they are used.
    pub inputs: [Option<usize>; 4],
    pub instructions: Vec<Instruction>,
    pub blocks: usize,
    /// Each value is a product of two operands, or one operand.
    pub values: Vec<(Operand, Option<Operand>)>,
    pub strengths: usize,
    /// Strengths without the attributes of a source.
    pub linear: usize,
    /// Whether values are per unit of the only strength.
    pub unit: bool,
}

/// Marks r·r among the nodes of a tape.
const SQUARE: u32 = u32::MAX;

impl Code {
    /// The code of `kernel`.
    pub fn new(kernel: &Member) -> Self {
        let tape = kernel.tape();
        let unit = kernel.strengths == 1;
        let nodes = prepared(&tape, unit);
        let (nodes, values) = nodes;
        let count = nodes.len();
        let is_input = |n: &Node| matches!(n.op, Op::Parameter(_) | Op::Constant(_));
        // Results that are the same for all pairs.
        let mut uniform = vec![false; count];
        for (i, n) in nodes.iter().enumerate() {
            let args = &n.args[..n.op.arity()];
            uniform[i] = is_input(n) || (n.op.arity() > 0 && args.iter().all(|&a| a != SQUARE && uniform[a as usize]));
        }
        let mut wanted: Vec<u32> = Vec::new();
        let mut scalar = |a: u32| match wanted.iter().position(|&w| w == a) {
            Some(k) => k,
            None => {
                wanted.push(a);
                wanted.len() - 1
            }
        };
        // The last operation that uses a result; values are used to the end.
        let mut last = vec![0; count];
        let mut last_square = None;
        for (i, n) in nodes.iter().enumerate().filter(|(i, _)| !uniform[*i]) {
            for &a in &n.args[..n.op.arity()] {
                match a {
                    SQUARE => last_square = Some(i),
                    a => last[a as usize] = i,
                }
            }
        }
        // A value that is a product, which nothing else uses, is multiplied as it is added to its sum.
        let mut uses = vec![0; count];
        let args = nodes.iter().flat_map(|n| &n.args[..n.op.arity()]);
        args.chain(&values).filter(|&&a| a != SQUARE).for_each(|&a| uses[a as usize] += 1);
        let is_product =
            |v: u32| v != SQUARE && nodes[v as usize].op == Op::Mul && !uniform[v as usize] && uses[v as usize] == 1;
        let factors: Vec<Vec<u32>> = values
            .iter()
            .map(|&v| if is_product(v) { nodes[v as usize].args[..2].to_vec() } else { vec![v] })
            .collect();
        for &v in factors.iter().flatten() {
            match v {
                SQUARE => last_square = Some(count),
                v => last[v as usize] = count,
            }
        }
        let (mut free, mut blocks): (Vec<usize>, usize) = (Vec::new(), 0);
        let mut place: Vec<Option<usize>> = vec![None; count];
        let mut inputs = [None; 4];
        let mut claim = |free: &mut Vec<usize>| {
            free.pop().unwrap_or_else(|| {
                blocks += 1;
                blocks - 1
            })
        };
        for (i, n) in nodes.iter().enumerate() {
            if let Op::Coordinate(axis) = n.op
                && last[i] > 0
            {
                let block = claim(&mut free);
                (inputs[axis], place[i]) = (Some(block), Some(block));
            }
        }
        if last_square.is_some() {
            inputs[3] = Some(claim(&mut free));
        }
        let mut operand = |a: u32, place: &[Option<usize>]| match a {
            SQUARE => Operand::Block(inputs[3].unwrap_or(0)),
            a if uniform[a as usize] => Operand::Scalar(scalar(a)),
            a => match (nodes[a as usize].op, place[a as usize]) {
                (Op::Strength(j), _) => Operand::Strength(j),
                (_, block) => Operand::Block(block.unwrap_or(0)),
            },
        };
        let mut instructions = Vec::new();
        for (i, n) in nodes.iter().enumerate() {
            if uniform[i] || matches!(n.op, Op::Coordinate(_) | Op::Strength(_)) || last[i] == 0 {
                continue;
            }
            let arity = n.op.arity();
            let mut args = [Operand::Scalar(0); 3];
            for (to, &a) in args.iter_mut().zip(&n.args[..arity]) {
                *to = operand(a, &place);
            }
            // An element is read before it is written, so that the result may take the block of an argument.
            for (k, &a) in n.args[..arity].iter().enumerate() {
                let first = !n.args[..k].contains(&a);
                let is_input = a == SQUARE || matches!(nodes[a as usize].op, Op::Coordinate(_));
                // Several sets of strengths need the coordinates again.
                if is_input && !unit {
                    continue;
                }
                match a {
                    SQUARE if last_square == Some(i) && first => free.extend(inputs[3]),
                    SQUARE => {}
                    a if last[a as usize] == i && first => free.extend(place[a as usize]),
                    _ => {}
                }
            }
            let to = claim(&mut free);
            place[i] = Some(to);
            instructions.push(Instruction { op: n.op, args, to });
        }
        let values = factors.iter().map(|f| (operand(f[0], &place), f.get(1).map(|&b| operand(b, &place)))).collect();
        let scalars = tape.with_nodes(
            nodes.iter().map(|n| Node { op: n.op, args: n.args.map(|a| if a == SQUARE { 0 } else { a }) }).collect(),
            wanted,
        );
        let (strengths, linear) = (kernel.strengths, kernel.linear());
        Code { scalars, inputs, instructions, blocks, values, strengths, linear, unit }
    }
}

/// The operations of `tape` and its values, for strength 1 if `unit`, with r·r as [`SQUARE`] and with fused
/// multiply-adds. A root becomes a product with the reciprocal root, which vectors compute faster.
fn prepared(tape: &Tape, unit: bool) -> (Vec<Node>, Vec<u32>) {
    let old = tape.nodes();
    let mut uses = vec![0; old.len()];
    for n in old {
        n.args[..n.op.arity()].iter().for_each(|&a| uses[a as usize] += 1);
    }
    tape.values().iter().for_each(|&v| uses[v as usize] += 1);
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
            _ if is_square(i as u32) => SQUARE,
            Op::Strength(_) if unit => one,
            Op::Mul if arg(0) == one => arg(1),
            Op::Mul if arg(1) == one => arg(0),
            Op::Add => match (product(0), product(1)) {
                (Some([a, b]), _) => push(&mut nodes, Op::Fma, [a, b, arg(1)]),
                (_, Some([a, b])) => push(&mut nodes, Op::Fma, [a, b, arg(0)]),
                _ => push(&mut nodes, Op::Add, [arg(0), arg(1), 0]),
            },
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
    let values: Vec<u32> = tape.values().iter().map(|&v| moved[v as usize]).collect();
    live(nodes, values)
}

/// The nodes on which a value depends, each once.
fn live(nodes: Vec<Node>, values: Vec<u32>) -> (Vec<Node>, Vec<u32>) {
    let mut used = vec![false; nodes.len()];
    values.iter().filter(|&&v| v != SQUARE).for_each(|&v| used[v as usize] = true);
    for (i, n) in nodes.iter().enumerate().rev() {
        if used[i] {
            n.args[..n.op.arity()].iter().filter(|&&a| a != SQUARE).for_each(|&a| used[a as usize] = true);
        }
    }
    let (mut kept, mut moved): (Vec<Node>, Vec<u32>) = (Vec::new(), vec![0; nodes.len()]);
    let mut places: HashMap<Node, u32> = HashMap::new();
    let to = |a: u32, moved: &[u32]| if a == SQUARE { SQUARE } else { moved[a as usize] };
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
