//! The plan of the equivalent-density method: operators, arranged edges, workspaces.

use super::dft::Dft;
use super::points::Surface;
use super::pool::Pool;
use super::{families, m2l, points, stages::Run, translate};
use crate::lanes::Isa;
use crate::sum::Pair;
use crate::{Precision, Settings, Solver, StageSeconds};
use fmm_kernels::equivalent::{OperatorSet, Operators, Scalar, expansion, surface};
use fmm_traits::{Cube, Error, Family, Kernel, Lists, Observer, OutputColumns, Outputs, Tree, Visitor, evaluate};
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

/// Plans the equivalent-density method for `family` on `tree` and `lists`, in the current rayon pool.
///
/// Errors: the outputs are not those of the family; the order is out of range; an edge of the
/// lists is outside the region where equivalent densities are valid.
pub fn plan<F: Family>(
    family: &F,
    outputs: Outputs,
    tree: Tree,
    lists: Lists,
    settings: &Settings,
) -> Result<Box<dyn Solver>, Error> {
    family.validate()?;
    family.visit(outputs, Maker { family, tree, lists, settings })?
}

struct Maker<'a, F> {
    family: &'a F,
    tree: Tree,
    lists: Lists,
    settings: &'a Settings,
}

impl<F: Family> Visitor for Maker<'_, F> {
    type Output = Result<Box<dyn Solver>, Error>;
    fn visit<S: Kernel, E: Kernel>(self, columns: Vec<OutputColumns>) -> Self::Output {
        let Maker { family, tree, lists, settings } = self;
        match settings.precision {
            Precision::F32 => Ok(Box::new(Plan::<f32>::new::<F, S, E>(family, tree, lists, settings, columns)?)),
            Precision::F64 => Ok(Box::new(Plan::<f64>::new::<F, S, E>(family, tree, lists, settings, columns)?)),
        }
    }
}

/// What a plan holds that does not change between applications; `T` is the precision of the far field.
/// Kernels enter as [`Pair`] sums and through [`Levels`], not as types.
pub struct Plan<T: Scalar> {
    /// Strengths → values, in both precisions of the near field.
    pub(super) near32: Pair<f32>,
    pub(super) near64: Pair<f64>,
    /// Strengths → check values.
    pub(super) check: Pair<T>,
    /// Densities → values.
    pub(super) far: Pair<T>,
    levels: Box<dyn Levels<T>>,
    pub(super) tree: Tree,
    pub(super) lists: Lists,
    pub(super) settings: Settings,
    pub(super) columns: Vec<OutputColumns>,
    pub(super) scale: f64,
    pub(super) operators: Vec<Arc<Operators<T>>>,
    /// Parameters of every kernel on the unit box of each level.
    pub(super) params: Vec<Vec<T>>,
    pub(super) near_params: Vec<Vec<f64>>,
    pub(super) raw_params: Vec<f64>,
    pub(super) inner: Surface<T>,
    pub(super) outer: Surface<T>,
    pub(super) dft: Dft<T>,
    pub(super) tables: Vec<Option<Arc<m2l::Table<T>>>>,
    pub(super) geometry: Geometry,
    pub(super) pools: Pools<T>,
    workspaces: Mutex<Vec<Workspace<T>>>,
}

/// What depends on the kernels of a family and the side of a box.
trait Levels<T: Scalar>: Send + Sync {
    /// Components of an equivalent density and of check values.
    fn components(&self) -> [usize; 2];
    fn operators(&self, sides: &[f64], settings: &Settings) -> Result<OperatorSet<T>, Error>;
    fn table(&self, operators: &Operators<T>, dft: &Dft<T>, isa: Isa) -> Arc<m2l::Table<T>>;
    /// Parameters on the unit box that stands for one of side `side`.
    fn parameters(&self, side: f64) -> Vec<f64>;
}

struct LevelsOf<F, S>(Vec<f64>, PhantomData<fn() -> (F, S)>);

impl<F: Family, S: Kernel, T: Scalar> Levels<T> for LevelsOf<F, S> {
    fn components(&self) -> [usize; 2] {
        [F::Equivalent::STRENGTHS, F::Equivalent::VALUES]
    }
    fn operators(&self, sides: &[f64], settings: &Settings) -> Result<OperatorSet<T>, Error> {
        OperatorSet::build::<F>(&self.0, sides, settings.order, settings.cache.as_deref())
    }
    fn table(&self, operators: &Operators<T>, dft: &Dft<T>, isa: Isa) -> Arc<m2l::Table<T>> {
        m2l::Table::shared::<F::Equivalent>(&operators.params, dft, operators.order, isa)
    }
    fn parameters(&self, side: f64) -> Vec<f64> {
        S::dilated(&self.0, side).unwrap_or_else(|| self.0.clone())
    }
}

/// What follows from tree and lists.
pub(super) struct Geometry {
    pub m2l: Vec<families::Families>,
    /// Boxes that have a local.
    pub active: Vec<bool>,
    /// Leaves with targets, in the order of their targets, with their levels.
    pub leaves: Vec<(u32, u8)>,
    /// `leaves[groups[g]..groups[g+1]]` is one task.
    pub groups: Vec<usize>,
    /// Tree position of each target of the user.
    pub position: Vec<u32>,
}

/// Scratch per thread.
pub(super) struct Pools<T: Scalar> {
    pub translate: Pool<translate::Scratch<T>>,
    pub points: Pool<points::Scratch<T>>,
    pub near32: Pool<points::Scratch<f32>>,
    pub near64: Pool<points::Scratch<f64>>,
    pub m2l: Pool<m2l::Scratch<T>>,
}

/// Arrays of one application.
#[derive(Default)]
pub(super) struct Workspace<T> {
    /// `strengths[component][tree position]`.
    pub strengths: Vec<Vec<f64>>,
    pub multipoles: Vec<T>,
    pub locals: Vec<T>,
    /// `values[tree position × K::VALUES ..]`.
    pub values: Vec<f64>,
    pub spectra: Vec<T>,
}

/// Targets per task of L2P, M2P and P2P.
const TASK: usize = 256;

impl Geometry {
    fn new(tree: &Tree, lists: &Lists) -> Result<Self, Error> {
        admissible(tree, lists)?;
        let active = (0..tree.len())
            .map(|b| !(lists.m2l.row(b).is_empty() && lists.p2l.row(b).is_empty() && lists.l2l.row(b).is_empty()))
            .collect();
        let mut leaves = Vec::new();
        for level in 0..tree.levels() {
            let has_targets = |&b: &usize| tree.is_leaf(b) && !tree.targets_of(b).is_empty();
            leaves.extend(tree.level(level).filter(has_targets).map(|b| (b as u32, level as u8)));
        }
        leaves.sort_unstable_by_key(|&(b, _)| tree.target_range[b as usize][0]);
        let mut groups = vec![0];
        let mut count = 0;
        for (i, &(b, _)) in leaves.iter().enumerate() {
            count += tree.targets_of(b as usize).len();
            if count >= TASK || i + 1 == leaves.len() {
                groups.push(i + 1);
                count = 0;
            }
        }
        let mut position = vec![0; tree.targets.len()];
        for (i, &user) in tree.targets.order.iter().enumerate() {
            position[user as usize] = i as u32;
        }
        Ok(Geometry { m2l: families::arrange(tree, lists)?, active, leaves, groups, position })
    }
}

/// Whether box `a` is an ancestor of box `b`.
fn contains(tree: &Tree, a: u32, b: u32) -> bool {
    let mut b = b;
    while b > a {
        b = tree.parent[b as usize];
    }
    b == a
}

/// Checks that points enter and leave the sums at leaves, each once and with a far field to meet there, as
/// the stages assume; and the W and X edges against the region where the expansion is valid ([`families::arrange`] checks V).
fn admissible(tree: &Tree, lists: &Lists) -> Result<(), Error> {
    let cube = |b: u32| {
        let level = tree.level_of(b as usize);
        Cube { center: tree.center(b as usize, level), side: tree.side_at(level) }
    };
    let refuse = |what: &str, t, s| Err(Error::Edge { what: what.into(), target: t, source_box: s });
    let leaf = |b: u32| tree.is_leaf(b as usize);
    for e in [&lists.p2m, &lists.l2p] {
        if let Some((t, s)) = e.iter().find(|&(t, s)| t != s || !leaf(t)) {
            return refuse("P2M and L2P are between a leaf and itself", t, s);
        }
    }
    for e in [&lists.m2p, &lists.p2p] {
        if let Some((t, s)) = e.iter().find(|&(t, _)| !leaf(t)) {
            return refuse("targets are met at leaves", t, s);
        }
    }
    if let Some((t, s)) = lists.p2p.iter().find(|&(t, s)| t != s && contains(tree, s, t)) {
        return refuse("the sources of a P2P edge include the targets", t, s);
    }
    let mut far = lists.m2l.iter().chain(lists.m2p.iter()).chain(lists.p2l.iter());
    if let (true, Some((t, s))) = (lists.p2m.is_empty() && lists.l2p.is_empty(), far.next()) {
        return refuse("a far field without P2M and L2P", t, s);
    }
    for (t, s) in lists.m2p.iter() {
        if !expansion::m2p_valid(cube(t), cube(s)) {
            return refuse("an equivalent density is not valid on all of the target box", t, s);
        }
    }
    for (t, s) in lists.p2l.iter() {
        if !expansion::p2l_valid(cube(t), cube(s)) {
            return refuse("the sources are too close for a local equivalent density", t, s);
        }
    }
    Ok(())
}

impl<T: Scalar> Plan<T> {
    fn new<F: Family, S: Kernel, E: Kernel>(
        family: &F,
        tree: Tree,
        lists: Lists,
        settings: &Settings,
        columns: Vec<OutputColumns>,
    ) -> Result<Self, Error> {
        let p = settings.order;
        let geometry = Geometry::new(&tree, &lists)?;
        let dft = Dft::new(p, settings.isa);
        let pools = Pools {
            translate: Pool::new(Default::default),
            points: Pool::new(Default::default),
            near32: Pool::new(Default::default),
            near64: Pool::new(Default::default),
            m2l: Pool::new(|| m2l::Scratch::new(&dft)),
        };
        let raw_params = family.parameters();
        let mut plan = Plan {
            near32: Pair::of::<S>(),
            near64: Pair::of::<S>(),
            check: Pair::of::<F::Check>(),
            far: Pair::of::<E>(),
            levels: Box::new(LevelsOf::<F, S>(raw_params.clone(), PhantomData)),
            tree,
            lists,
            settings: settings.clone(),
            columns,
            scale: family.scale(),
            operators: Vec::new(),
            params: Vec::new(),
            near_params: Vec::new(),
            raw_params,
            inner: Surface::new(p, surface::INNER),
            outer: Surface::new(p, surface::OUTER),
            dft,
            tables: Vec::new(),
            geometry,
            pools,
            workspaces: Mutex::default(),
        };
        let operators = plan.operators_of(&plan.tree, &plan.lists)?;
        plan.take_levels(operators);
        Ok(plan)
    }

    /// Operators of the levels of `tree`; none without a far field.
    fn operators_of(&self, tree: &Tree, lists: &Lists) -> Result<Vec<Arc<Operators<T>>>, Error> {
        if lists.p2m.is_empty() && lists.l2p.is_empty() {
            return Ok(Vec::new());
        }
        let sides: Vec<f64> = (0..tree.levels()).map(|l| tree.side_at(l)).collect();
        let set = self.levels.operators(&sides, &self.settings)?;
        Ok((0..tree.levels()).map(|l| set.level(l).clone()).collect())
    }

    /// Takes `operators`, and makes the parameters and M2L tables of the levels of the tree.
    fn take_levels(&mut self, operators: Vec<Arc<Operators<T>>>) {
        self.operators = operators;
        let sides = (0..self.tree.levels()).map(|l| self.tree.side_at(l));
        self.near_params = sides.map(|h| self.levels.parameters(h)).collect();
        self.params = self.near_params.iter().map(|x| x.iter().map(|&x| T::of(x)).collect()).collect();
        self.tables.clear();
        for (level, plan) in self.geometry.m2l.iter().enumerate() {
            let table = (!plan.is_empty()).then(|| {
                let same =
                    |l: &usize| self.tables[*l].is_some() && Arc::ptr_eq(&self.operators[*l], &self.operators[level]);
                let known = (0..level).rev().find(same).and_then(|l| self.tables[l].clone());
                known.unwrap_or_else(|| self.levels.table(&self.operators[level], &self.dft, self.settings.isa))
            });
            self.tables.push(table);
        }
    }

    /// Numbers in a row of `multipoles`.
    pub(super) fn multipole_row(&self) -> usize {
        self.levels.components()[0] * surface::len(self.settings.order)
    }

    /// Numbers in a row of `locals`, which holds check values first and a density later.
    pub(super) fn local_row(&self) -> usize {
        let [densities, checks] = self.levels.components();
        densities.max(checks) * surface::len(self.settings.order)
    }
}

impl<T: Scalar> Solver for Plan<T> {
    fn values(&self) -> usize {
        self.far.values()
    }
    fn columns(&self) -> &[OutputColumns] {
        &self.columns
    }
    fn tree(&self) -> &Tree {
        &self.tree
    }
    fn lists(&self) -> &Lists {
        &self.lists
    }

    fn apply(&self, strengths: &[f64], out: &mut [f64], observer: Observer) -> Result<StageSeconds, Error> {
        let (n, c) = (self.tree.sources.len(), self.near64.strengths());
        let shape = |array, found, expected, why: &str| Error::Shape { array, found, expected, why: why.into() };
        if strengths.len() != n * c {
            return Err(shape("strengths", strengths.len(), n * c, "sources × strengths of the kernel"));
        }
        let expected = self.tree.targets.len() * self.far.values();
        if out.len() != expected {
            return Err(shape("out", out.len(), expected, "targets × values of the kernel"));
        }
        let free = || self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        let workspace = free().pop().unwrap_or_default();
        let mut run = Run::new(self, workspace, strengths, out);
        let done = evaluate(&mut run, &self.lists, observer);
        let (workspace, seconds) = run.finish();
        free().push(workspace);
        done.map(|()| seconds)
    }

    fn bytes(&self) -> u64 {
        let mut tables: Vec<&Arc<m2l::Table<T>>> = self.tables.iter().flatten().collect();
        tables.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let mut operators: Vec<&Arc<Operators<T>>> = self.operators.iter().collect();
        operators.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let rows = (self.multipole_row() + self.local_row()) * self.tree.len();
        let [densities, checks] = self.levels.components();
        let families = self.geometry.m2l.iter().map(|l| l.parents.len()).max().unwrap_or(0);
        let spectra = m2l::spectra_len(&self.dft, families, densities.max(checks));
        let points = self.tree.sources.len() * self.near64.strengths() + self.tree.targets.len() * self.far.values();
        self.tree.bytes()
            + self.lists.bytes()
            + tables.iter().map(|t| t.bytes()).sum::<u64>()
            + operators.iter().map(|o| o.bytes() as u64).sum::<u64>()
            + ((rows + spectra) * size_of::<T>() + points * 8) as u64
    }

    fn set_tree(&mut self, tree: Tree, lists: Lists) -> Result<(), Error> {
        let geometry = Geometry::new(&tree, &lists)?;
        let operators = self.operators_of(&tree, &lists)?;
        (self.tree, self.lists, self.geometry) = (tree, lists, geometry);
        self.take_levels(operators);
        Ok(())
    }
}
