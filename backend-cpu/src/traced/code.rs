//! A kernel prepared for a loop over pairs that carries out its steps one after the other.
//!
//! Results that depend on parameters alone are computed once per call. r·r, 1/|r| and |r| are made together with r. A
//! kernel of one strength is evaluated for strength 1, and multiplied by the strength as it is added to the sums.

use super::fuse::{Fused, INPUTS, fused, input};
use fmm_traits::tape::{Node, Op};
use fmm_traits::{Member, Tape};

/// Where a step finds an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    /// The block with this number.
    Block(usize),
    /// A number that is the same for all pairs.
    Scalar(usize),
    /// A strength of the source.
    Strength(usize),
}

/// A sum of products of pairs of numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Products that are added, the first ones.
    pub plus: usize,
    /// Products that are subtracted. With neither, the sum is its only argument.
    pub minus: usize,
}

impl Terms {
    /// Largest number of products.
    pub const MOST: usize = 3;
}

/// What an instruction computes from its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// An operation of a tape.
    One(Op),
    /// The product of so many arguments, three or four.
    Product(usize),
    /// A sum of products.
    Sum(Terms),
}

impl Step {
    /// Largest number of factors of a product.
    pub const MOST_FACTORS: usize = 4;
}

/// Largest number of arguments of a step.
pub const MOST_ARGS: usize = 2 * Terms::MOST;

/// A step on blocks.
#[derive(Clone, Debug)]
pub struct Instruction {
    pub step: Step,
    /// At most [`MOST_ARGS`].
    pub args: Vec<Operand>,
    pub to: usize,
}

/// A value of the kernel.
#[derive(Clone, Debug)]
pub struct Value {
    pub terms: Terms,
    /// At most [`MOST_ARGS`].
    pub args: Vec<Operand>,
}

impl Value {
    /// Coordinates of a vector.
    pub const AXES: usize = 3;
    /// Largest number of products of a vector.
    const MOST: usize = MOST_ARGS / Self::AXES;

    /// Puts the factors that three values have in common first in each product. Then the values are sums of vectors
    /// times numbers, such as a gradient, and are added at once. False if they have none in common.
    fn vector(values: &mut [Value]) -> bool {
        let [a, b, c] = values else { return false };
        let count = a.terms.plus + a.terms.minus;
        if a.terms != b.terms || a.terms != c.terms || count == 0 || count > Self::MOST {
            return false;
        }
        let pair = |value: &Value, k: usize| [value.args[2 * k], value.args[2 * k + 1]];
        let in_all = |k: usize, x: &Operand| pair(b, k).contains(x) && pair(c, k).contains(x);
        let common: Vec<_> = (0..count).map(|k| pair(a, k).into_iter().find(|x| in_all(k, x))).collect();
        let Some(common) = common.into_iter().collect::<Option<Vec<Operand>>>() else { return false };
        for value in [a, b, c] {
            for (pair, common) in value.args.chunks_exact_mut(2).zip(&common) {
                if pair[0] != *common {
                    pair.swap(0, 1);
                }
            }
        }
        true
    }
}

/// A kernel in the form in which the loop carries it out.
#[derive(Debug)]
pub struct Code {
    /// The numbers that are the same for all pairs.
    pub scalars: Tape,
    /// The blocks of x, y, z, r·r, 1/|r| and |r|, as far as they are used.
    pub inputs: [Option<usize>; INPUTS],
    pub instructions: Vec<Instruction>,
    pub blocks: usize,
    pub values: Vec<Value>,
    /// For each value, whether it and the next two are a [`Vector`](Value::vector).
    pub vectors: Vec<bool>,
    pub strengths: usize,
    /// Strengths without the attributes of a source.
    pub linear: usize,
    /// Whether values are per unit of the only strength.
    pub unit: bool,
}

impl Code {
    /// The code of `kernel`.
    pub fn new(kernel: &Member) -> Self {
        let tape = kernel.tape();
        let unit = kernel.strengths == 1;
        let Fused { nodes, uniform, steps, values } = fused(&tape, unit);
        let mut places = Places::new(&nodes, &uniform);
        // The last step that uses a result or an input; values are used to the end.
        for (k, (_, _, args)) in steps.iter().enumerate() {
            args.iter().for_each(|&a| places.last.insert(a, k));
        }
        values.iter().flat_map(|(_, args)| args).for_each(|&a| places.last.insert(a, steps.len()));
        let used = |k: &usize| places.last.inputs[*k].is_some();
        let of_inputs: Vec<usize> = (0..INPUTS).filter(used).collect();
        of_inputs.iter().for_each(|&k| places.inputs[k] = Some(places.blocks.claim()));
        let mut instructions = Vec::new();
        for (k, (node, step, args)) in steps.iter().enumerate() {
            let found = args.iter().map(|&a| places.operand(a)).collect();
            // An element is read before it is written, so that the result may take the block of an argument. Several
            // sets of strengths need the inputs again.
            for (i, &a) in args.iter().enumerate() {
                if places.last.of(a) == Some(k) && !args[..i].contains(&a) && (unit || input(a).is_none()) {
                    places.release(a);
                }
            }
            let to = places.blocks.claim();
            places.results[*node as usize] = Some(to);
            instructions.push(Instruction { step: *step, args: found, to });
        }
        let mut value = |(terms, args): &(Terms, Vec<u32>)| Value {
            terms: *terms,
            args: args.iter().map(|&a| places.operand(a)).collect(),
        };
        let mut values: Vec<Value> = values.iter().map(&mut value).collect();
        let mut vectors = vec![false; values.len()];
        let mut first = 0;
        while first + Value::AXES <= values.len() {
            vectors[first] = Value::vector(&mut values[first..first + Value::AXES]);
            first += if vectors[first] { Value::AXES } else { 1 };
        }
        let Places { inputs, blocks, wanted, .. } = places;
        // Nodes that depend on inputs are none of the scalars, so that their arguments do not matter.
        let known = |n: &Node| Node { op: n.op, args: n.args.map(|a| if input(a).is_some() { 0 } else { a }) };
        let scalars = tape.with_nodes(nodes.iter().map(known).collect(), wanted);
        let (strengths, linear) = (kernel.strengths, kernel.linear());
        Code { scalars, inputs, instructions, blocks: blocks.count, values, vectors, strengths, linear, unit }
    }
}

/// The last step that uses a node or an input.
struct Last {
    nodes: Vec<Option<usize>>,
    inputs: [Option<usize>; INPUTS],
}

impl Last {
    fn of(&self, a: u32) -> Option<usize> {
        input(a).map_or_else(|| self.nodes[a as usize], |k| self.inputs[k])
    }

    fn insert(&mut self, a: u32, step: usize) {
        match input(a) {
            Some(k) => self.inputs[k] = Some(step),
            None => self.nodes[a as usize] = Some(step),
        }
    }
}

/// Blocks in use and free ones.
#[derive(Default)]
struct Blocks {
    count: usize,
    free: Vec<usize>,
}

impl Blocks {
    fn claim(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        })
    }
}

/// Where results are.
struct Places<'a> {
    nodes: &'a [Node],
    uniform: &'a [bool],
    last: Last,
    inputs: [Option<usize>; INPUTS],
    results: Vec<Option<usize>>,
    blocks: Blocks,
    /// The nodes that are scalars.
    wanted: Vec<u32>,
}

impl<'a> Places<'a> {
    fn new(nodes: &'a [Node], uniform: &'a [bool]) -> Self {
        let last = Last { nodes: vec![None; nodes.len()], inputs: [None; INPUTS] };
        let (inputs, results) = ([None; INPUTS], vec![None; nodes.len()]);
        Places { nodes, uniform, last, inputs, results, blocks: Blocks::default(), wanted: Vec::new() }
    }

    /// The block of a result or an input.
    fn block(&self, a: u32) -> Option<usize> {
        input(a).map_or_else(|| self.results[a as usize], |k| self.inputs[k])
    }

    /// Where a node or an input is.
    fn operand(&mut self, a: u32) -> Operand {
        if input(a).is_none() {
            if self.uniform[a as usize] {
                let known = self.wanted.iter().position(|&w| w == a);
                return Operand::Scalar(known.unwrap_or_else(|| {
                    self.wanted.push(a);
                    self.wanted.len() - 1
                }));
            }
            if let Op::Strength(j) = self.nodes[a as usize].op {
                return Operand::Strength(j);
            }
        }
        Operand::Block(self.block(a).unwrap_or(0))
    }

    /// Gives the block of a result or an input back.
    fn release(&mut self, a: u32) {
        let block = self.block(a);
        self.blocks.free.extend(block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fmm_traits::{Outputs, Traced};

    /// The dot product of a Stokeslet is one step, its product with 1/r³ another, and the values need no step.
    #[test]
    fn results_that_are_used_once_are_not_stored() {
        let text = "g = 1/r\nh = (x*q1 + y*q2 + z*q3)*g^3\nvalue g*q1 + h*x\nvalue g*q2 + h*y\nvalue g*q3 + h*z";
        let kernels = Traced::parse(text).unwrap().kernels(Outputs::POTENTIAL).unwrap();
        let code = Code::new(&kernels.near);
        let steps: Vec<Step> = code.instructions.iter().map(|i| i.step).collect();
        assert_eq!(steps, [Step::Sum(Terms { plus: 3, minus: 0 }), Step::Product(4)]);
        assert!(code.values.iter().all(|value| value.terms == Terms { plus: 2, minus: 0 }));
        // x, y, z, 1/r and one result.
        assert_eq!(code.blocks, 5);
        // g·q + h·r, with g and h first.
        assert_eq!(code.vectors, [true, false, false]);
        let firsts = |value: &Value| [value.args[0], value.args[2]];
        assert!(code.values.iter().all(|value| firsts(value) == firsts(&code.values[0])));
    }

    /// A gradient is a vector, behind the potential.
    #[test]
    fn gradients_are_vectors() {
        let gradients = Outputs::POTENTIAL | Outputs::GRADIENT;
        let kernels = Traced::expression("exp(-r)/r").unwrap().kernels(gradients).unwrap();
        assert_eq!(Code::new(&kernels.near).vectors, [false, true, false, false]);
    }

    /// The gradient of 1/r is −r·g³ with g = 1/r: one step, and values that are products with it.
    #[test]
    fn derivatives_have_few_steps() {
        let code = |text: &str| {
            let gradients = Outputs::POTENTIAL | Outputs::GRADIENT;
            Code::new(&Traced::parse(text).unwrap().kernels(gradients).unwrap().near)
        };
        let laplace = code("value 1/r");
        let steps: Vec<Step> = laplace.instructions.iter().map(|i| i.step).collect();
        assert_eq!(steps, [Step::Product(3)]);
        assert!(laplace.values[1..].iter().all(|value| value.terms == Terms { plus: 0, minus: 1 }));
        let stokes = "g = 1/r\nh = (x*q1 + y*q2 + z*q3)*g^3\nvalue g*q1 + h*x\nvalue g*q2 + h*y\nvalue g*q3 + h*z";
        // g², g³, r·q, (r·q)g³, −3(r·q)g⁵, and two steps for each axis.
        assert!(code(stokes).instructions.len() <= 12, "{:?}", code(stokes).instructions);
    }
}
