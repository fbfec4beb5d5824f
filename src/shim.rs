//! The interface of the solver of `backend-cpu` over direct summation.
#![allow(missing_docs, dead_code)]
pub use ::backend_cpu::{Isa, Precision, Targets, direct};
use fmm_traits::{Error, Family, Lists, Observer, OutputColumns, Outputs, Stage, Tree};

pub struct Settings {
    pub order: usize,
    pub precision: Precision,
    pub near: Precision,
    pub isa: Isa,
}
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageSeconds(pub [f64; 10]);
pub trait Solver: Send + Sync {
    fn values(&self) -> usize;
    fn columns(&self) -> &[OutputColumns];
    fn apply(&self, strengths: &[f64], out: &mut [f64], observer: Observer) -> Result<StageSeconds, Error>;
    fn bytes(&self) -> u64;
    fn tree(&self) -> &Tree;
    fn lists(&self) -> &Lists;
    fn set_tree(&mut self, tree: Tree, lists: Lists) -> Result<(), Error>;
}
struct Fake<F> {
    family: F,
    outputs: Outputs,
    tree: Tree,
    lists: Lists,
    columns: Vec<OutputColumns>,
    values: usize,
}
fn user(p: &fmm_traits::Points) -> Vec<f64> {
    let mut out = vec![0.0; 3 * p.len()];
    for (k, &i) in p.order.iter().enumerate() {
        for a in 0..3 {
            out[3 * i as usize + a] = p.xyz[a][k];
        }
    }
    out
}
impl<F: Family> Solver for Fake<F> {
    fn values(&self) -> usize {
        self.values
    }
    fn columns(&self) -> &[OutputColumns] {
        &self.columns
    }
    fn apply(&self, strengths: &[f64], out: &mut [f64], observer: Observer) -> Result<StageSeconds, Error> {
        for (k, s) in Stage::ALL.into_iter().enumerate() {
            if !observer(s, k as f64 / 10.0) {
                return Err(Error::Cancelled { stage: s.name() });
            }
        }
        let s = user(&self.tree.sources);
        let t = user(&self.tree.targets);
        let targets = if self.tree.same_points() { Targets::Sources(None) } else { Targets::Points(&t) };
        out.copy_from_slice(
            &direct(&self.family, self.outputs, &s, strengths, targets, Precision::F64, Isa::Portable)?.0,
        );
        Ok(StageSeconds([0.01; 10]))
    }
    fn bytes(&self) -> u64 {
        self.tree.bytes() + self.lists.bytes()
    }
    fn tree(&self) -> &Tree {
        &self.tree
    }
    fn lists(&self) -> &Lists {
        &self.lists
    }
    fn set_tree(&mut self, tree: Tree, lists: Lists) -> Result<(), Error> {
        self.tree = tree;
        self.lists = lists;
        Ok(())
    }
}
pub fn plan<F: Family>(
    family: &F,
    outputs: Outputs,
    tree: Tree,
    lists: Lists,
    _s: &Settings,
) -> Result<Box<dyn Solver>, Error> {
    let (v, columns) = direct(family, outputs, &[], &[], Targets::Points(&[0.0; 3]), Precision::F64, Isa::Portable)?;
    Ok(Box::new(Fake { family: family.clone(), outputs, tree, lists, columns, values: v.len() }))
}
pub fn tuned_occupancy<F: Family>(_f: &F, _o: Outputs, order: usize, _p: Precision, _n: Precision) -> f64 {
    10.0 * order as f64
}
