//! The plan of the equivalent-density method: operators, arranged edges, workspaces.

use super::dft::Dft;
use super::points::{Frame, Surface};
use super::pool::Pool;
use super::{families, m2l, points, stages::Run, translate};
use crate::admissible::{self, Region};
use crate::application::{Workspaces, check_shapes};
use crate::lanes::Isa;
use crate::leaves::Leaves;
use crate::sum::Pair;
use crate::{Precision, Settings, Solver, StageSeconds};
use fmm_kernels::equivalent::{Affine, OperatorSet, Operators, Scalar, expansion, surface};
use fmm_traits::{Error, Family, Kernel, Lists, Observer, OutputColumns, Outputs, Tree, Visitor, evaluate};
use std::marker::PhantomData;
use std::sync::Arc;

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
    /// Strengths → values: the near field, and that of leaves for which `T` has not the range.
    pub(super) near: Pair<T>,
    pub(super) near64: Pair<f64>,
    /// Strengths → check values.
    pub(super) check: Pair<T>,
    /// Densities → values.
    pub(super) far: Pair<T>,
    pub(super) far64: Pair<f64>,
    levels: Box<dyn Levels<T>>,
    pub(super) tree: Tree,
    pub(super) lists: Lists,
    pub(super) settings: Settings,
    pub(super) columns: Vec<OutputColumns>,
    pub(super) scale: f64,
    pub(super) operators: Vec<Arc<Operators<T>>>,
    /// Parameters of every kernel on the unit box of each level.
    pub(super) params: Vec<Vec<T>>,
    /// On a unit box for [`Frame::plain`].
    pub(super) plain_params: Vec<f64>,
    pub(super) affine: Affine<T>,
    pub(super) inner: Surface<T>,
    pub(super) inner64: Surface<f64>,
    pub(super) outer: Surface<T>,
    pub(super) dft: Dft<T>,
    pub(super) tables: Vec<Option<Arc<m2l::Table<T>>>>,
    pub(super) geometry: Geometry,
    pub(super) pools: Pools<T>,
    workspaces: Workspaces<Workspace<T>>,
}

/// What depends on the kernels of a family and the side of a box.
trait Levels<T: Scalar>: Send + Sync {
    /// Components of an equivalent density and of check values.
    fn components(&self) -> [usize; 2];
    fn operators(&self, sides: &[f64], settings: &Settings) -> Result<OperatorSet<T>, Error>;
    fn table(&self, operators: &Operators<T>, dft: &Dft<T>, isa: Isa) -> Arc<m2l::Table<T>>;
    /// What locals carry beside densities, for a root of side `side`.
    fn affine(&self, side: f64, order: usize) -> Affine<T>;
    /// Parameters on the unit box that stands for one of side `side`.
    fn parameters(&self, side: f64) -> Vec<f64>;
}

struct LevelsOf<F, S, E>(Vec<f64>, PhantomData<fn(F, S, E)>);

impl<F: Family, S: Kernel, E: Kernel, T: Scalar> Levels<T> for LevelsOf<F, S, E> {
    fn components(&self) -> [usize; 2] {
        [F::Equivalent::STRENGTHS, F::Equivalent::VALUES]
    }
    fn operators(&self, sides: &[f64], settings: &Settings) -> Result<OperatorSet<T>, Error> {
        OperatorSet::build::<F>(&self.0, sides, settings.order, settings.cache.as_deref())
    }
    fn table(&self, operators: &Operators<T>, dft: &Dft<T>, isa: Isa) -> Arc<m2l::Table<T>> {
        m2l::Table::shared::<F::Equivalent>(&operators.params, dft, operators.order, isa)
    }
    fn affine(&self, side: f64, order: usize) -> Affine<T> {
        Affine::of::<F::Equivalent, E>(&F::Equivalent::unit_parameters(&self.0, side), order)
    }
    fn parameters(&self, side: f64) -> Vec<f64> {
        S::unit_parameters(&self.0, side)
    }
}

/// What follows from tree and lists.
pub(super) struct Geometry {
    pub m2l: Vec<families::Families>,
    /// Boxes that have a local.
    pub active: Vec<bool>,
    pub leaves: Leaves,
}

/// Scratch per thread.
pub(super) struct Pools<T: Scalar> {
    pub translate: Pool<translate::Scratch<T>>,
    pub points: Pool<points::Scratch<T>>,
    pub near64: Pool<points::Scratch<f64>>,
    pub m2l: Pool<m2l::Scratch<T>>,
}

/// Arrays of one application.
#[derive(Default)]
pub(super) struct Workspace<T> {
    /// `strengths[set and component][tree position]`.
    pub strengths: Vec<Vec<f64>>,
    /// Of each component that sources have a net strength of and densities keep: that of each box, hatted.
    pub net: Vec<Vec<T>>,
    pub multipoles: Vec<T>,
    pub locals: Vec<T>,
    /// `values[tree position][set][value]`.
    pub values: Vec<f64>,
    pub spectra: Vec<T>,
}

impl<T> Workspace<T> {
    fn bytes(&self) -> u64 {
        let doubles = self.strengths.iter().map(Vec::capacity).sum::<usize>() + self.values.capacity();
        let net = self.net.iter().map(Vec::capacity).sum::<usize>();
        let numbers = net + self.multipoles.capacity() + self.locals.capacity() + self.spectra.capacity();
        (doubles * size_of::<f64>() + numbers * size_of::<T>()) as u64
    }
}

impl Geometry {
    fn new(tree: &Tree, lists: &Lists) -> Result<Self, Error> {
        admissible::check(tree, lists, &REGION)?;
        let active = (0..tree.len())
            .map(|b| !(lists.m2l.row(b).is_empty() && lists.p2l.row(b).is_empty() && lists.l2l.row(b).is_empty()))
            .collect();
        Ok(Geometry { m2l: families::arrange(tree, lists)?, active, leaves: Leaves::new(tree) })
    }
}

/// Where equivalent densities are valid ([`families::arrange`] checks M2L).
const REGION: Region = Region { m2p: expansion::m2p_valid, m2l: |_, _| true, p2l: expansion::p2l_valid };

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
            near64: Pool::new(Default::default),
            m2l: Pool::new(|| m2l::Scratch::new(&dft)),
        };
        let levels: Box<dyn Levels<T>> = Box::new(LevelsOf::<F, S, E>(family.parameters(), PhantomData));
        let mut plan = Plan {
            near: Pair::close::<S>(),
            near64: Pair::close::<S>(),
            check: Pair::of::<F::Check>(),
            far: Pair::of::<E>(),
            far64: Pair::of::<E>(),
            affine: levels.affine(tree.side_at(0), p),
            levels,
            tree,
            lists,
            settings: settings.clone(),
            columns,
            scale: family.scale(),
            operators: Vec::new(),
            params: Vec::new(),
            plain_params: Vec::new(),
            inner: Surface::new(p, surface::INNER),
            inner64: Surface::new(p, surface::INNER),
            outer: Surface::new(p, surface::OUTER),
            dft,
            tables: Vec::new(),
            geometry,
            pools,
            workspaces: Workspaces::default(),
        };
        let operators = plan.operators_of(&plan.tree, &plan.lists)?;
        plan.take_levels(operators);
        Ok(plan)
    }

    /// Operators of the levels of `tree`; none without a far field.
    fn operators_of(&self, tree: &Tree, lists: &Lists) -> Result<Vec<Arc<Operators<T>>>, Error> {
        if !lists.have_multipoles() && !lists.have_locals() {
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
        self.plain_params = self.levels.parameters(Frame::plain(&self.tree).side);
        self.params = sides.map(|h| self.levels.parameters(h).into_iter().map(T::of).collect()).collect();
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

    /// Numbers in all multipoles and in all locals: none where no edge has any.
    pub(super) fn rows(&self) -> [usize; 2] {
        let numbers = |have: bool, row: usize| if have { self.tree.len() * row } else { 0 };
        [
            numbers(self.lists.have_multipoles(), self.multipole_row()),
            numbers(self.lists.have_locals(), self.local_row()),
        ]
    }

    /// Numbers in a row of `multipoles`.
    pub(super) fn multipole_row(&self) -> usize {
        self.levels.components()[0] * surface::len(self.settings.order)
    }

    /// Numbers in a row of `locals`, which holds check values first and a density later, and at its end the affine part.
    pub(super) fn local_row(&self) -> usize {
        let [densities, checks] = self.levels.components();
        densities.max(checks) * surface::len(self.settings.order) + self.affine.len()
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
        self.apply_batch(&[strengths], &mut [out], observer)
    }

    fn together(&self) -> usize {
        self.near64.together()
    }

    fn bytes_of_a_set(&self) -> u64 {
        let rows: usize = self.rows().iter().sum();
        let points = self.tree.sources.len() * self.near64.strengths() + self.tree.targets.len() * self.far.values();
        (rows * size_of::<T>() + points * 8) as u64
    }

    fn apply_batch(
        &self,
        strengths: &[&[f64]],
        out: &mut [&mut [f64]],
        observer: Observer,
    ) -> Result<StageSeconds, Error> {
        let (sources, targets) = (self.tree.sources.len(), self.tree.targets.len());
        let expected = [sources * self.near64.strengths(), targets * self.far.values()];
        check_shapes([strengths.len(); 2], [out.len(), strengths.len()])?;
        if strengths.is_empty() {
            return Ok(StageSeconds::default());
        }
        for (strengths, out) in strengths.iter().zip(out.iter()) {
            check_shapes([strengths.len(), expected[0]], [out.len(), expected[1]])?;
        }
        let mut run = Run::new(self, self.workspaces.take(), strengths, out);
        let done = evaluate(&mut run, &self.lists, observer);
        let (workspace, seconds) = run.finish();
        self.workspaces.put(workspace);
        done.map(|()| seconds)
    }

    fn bytes(&self) -> u64 {
        let mut tables: Vec<&Arc<m2l::Table<T>>> = self.tables.iter().flatten().collect();
        tables.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let mut operators: Vec<&Arc<Operators<T>>> = self.operators.iter().collect();
        operators.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let [densities, checks] = self.levels.components();
        let families = self.geometry.m2l.iter().map(|l| l.parents.len()).max().unwrap_or(0);
        let spectra = m2l::spectra_len(&self.dft, families, densities.max(checks));
        let workspace = self.bytes_of_a_set() + (spectra * size_of::<T>()) as u64;
        self.tree.bytes()
            + self.lists.bytes()
            + tables.iter().map(|t| t.bytes()).sum::<u64>()
            + operators.iter().map(|o| o.bytes() as u64).sum::<u64>()
            + workspace.max(self.workspaces.bytes(Workspace::bytes))
    }

    fn set_tree(&mut self, tree: Tree, lists: Lists) -> Result<(), Error> {
        let geometry = Geometry::new(&tree, &lists)?;
        let operators = self.operators_of(&tree, &lists)?;
        (self.tree, self.lists, self.geometry) = (tree, lists, geometry);
        self.affine = self.levels.affine(self.tree.side_at(0), self.settings.order);
        self.take_levels(operators);
        Ok(())
    }
}
