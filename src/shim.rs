//! Scalar direct summation behind the interface of `backend-cpu`.
#![allow(missing_docs, dead_code)]
use crate::backend_cpu;
use fmm_traits::kernel::Visitor;
use fmm_traits::{Error, Family, Kernel, Lists, Observer, OutputColumns, Outputs, Stage, Tree};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    Avx512,
    Avx2,
    Portable,
}
impl Isa {
    pub fn detect() -> Self {
        Isa::Portable
    }
    pub fn name(self) -> &'static str {
        "portable"
    }
    pub fn available() -> Vec<Isa> {
        vec![Isa::Portable]
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    F32,
    F64,
}
#[derive(Clone, Copy)]
pub enum Targets<'a> {
    Same { indices: Option<&'a [usize]> },
    Separate(&'a [f64]),
}
struct Run<'a> {
    params: Vec<f64>,
    scale: f64,
    sources: &'a [f64],
    strengths: &'a [f64],
    targets: Targets<'a>,
}
impl Visitor for Run<'_> {
    type Output = (Vec<f64>, Vec<OutputColumns>);
    fn visit<S: Kernel, E: Kernel>(self, columns: Vec<OutputColumns>) -> Self::Output {
        let n = self.sources.len() / 3;
        let m = match self.targets {
            Targets::Same { indices: None } => n,
            Targets::Same { indices: Some(i) } => i.len(),
            Targets::Separate(t) => t.len() / 3,
        };
        let mut out = vec![0.0; m * S::VALUES];
        let mut one = [0.0; 40];
        for t in 0..m {
            let (skip, x) = match self.targets {
                Targets::Same { indices } => {
                    let i = indices.map_or(t, |v| v[t]);
                    (i, &self.sources[3 * i..3 * i + 3])
                }
                Targets::Separate(p) => (usize::MAX, &p[3 * t..3 * t + 3]),
            };
            for j in (0..n).filter(|&j| j != skip) {
                let y = &self.sources[3 * j..3 * j + 3];
                S::eval(
                    &self.params,
                    &[x[0] - y[0], x[1] - y[1], x[2] - y[2]],
                    &self.strengths[j * S::STRENGTHS..(j + 1) * S::STRENGTHS],
                    &mut one[..S::VALUES],
                );
                for v in 0..S::VALUES {
                    out[t * S::VALUES + v] += self.scale * one[v];
                }
            }
        }
        (out, columns)
    }
}
pub fn direct<F: Family>(
    family: &F,
    outputs: Outputs,
    sources: &[f64],
    strengths: &[f64],
    targets: Targets<'_>,
    _p: Precision,
    _isa: Isa,
) -> Result<(Vec<f64>, Vec<OutputColumns>), Error> {
    family.visit(outputs, Run { params: family.parameters(), scale: family.scale(), sources, strengths, targets })
}
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
        let targets = if self.tree.same_points() { Targets::Same { indices: None } } else { Targets::Separate(&t) };
        out.copy_from_slice(
            &backend_cpu::direct(&self.family, self.outputs, &s, strengths, targets, Precision::F64, Isa::Portable)?.0,
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
    let (v, columns) = direct(family, outputs, &[], &[], Targets::Separate(&[0.0; 3]), Precision::F64, Isa::Portable)?;
    Ok(Box::new(Fake { family: family.clone(), outputs, tree, lists, columns, values: v.len() }))
}
pub fn tuned_occupancy<F: Family>(_f: &F, _o: Outputs, order: usize, _p: Precision, _n: Precision) -> f64 {
    10.0 * order as f64
}
