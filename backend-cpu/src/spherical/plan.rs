//! The plan of the method by spherical harmonics: operators, sorted edges and workspaces.

use super::stages::{Coefficients, Run};
use super::translate::{Translations, cube};
use crate::admissible::{self, Region};
use crate::application::{Workspaces, check_shapes};
use crate::frame::Scratch;
use crate::leaves::Leaves;
use crate::pairs::{Pair, Pairs};
use crate::pool::Pool;
use crate::ranks;
use crate::{OctreeSolver, Settings};
use fmm_kernels::spherical::basis::Basis;
use fmm_kernels::spherical::gradient::Gradient;
use fmm_kernels::spherical::horner::{self, Horner};
use fmm_kernels::spherical::layout::{Layout, derivatives_of, layout};
use fmm_kernels::spherical::truncation::degrees;
use fmm_kernels::spherical::{MAX_ORDER, MIN_ORDER, SphericalOptions, expansion};
use fmm_traits::{
    Cube, Error, Kernels, Lists, NearField, Observer, OutputColumns, Precision, Real, Solver, StageSeconds, Tree,
    evaluate,
};
use rayon::prelude::*;
use std::sync::Arc;

/// Plans the method by spherical harmonics for `kernels` on `tree` and `lists`, in the current rayon pool.
///
/// # Errors
/// The far field of the kernels is not a field of charges and dipoles, the order is out of range, or an edge of the
/// lists is outside the region where the expansion is valid.
pub fn plan(
    kernels: Kernels,
    pairs: &Pairs,
    tree: Tree,
    lists: Lists,
    settings: &Settings,
    options: SphericalOptions,
) -> Result<Box<dyn OctreeSolver>, Error> {
    let order = settings.order;
    if !(MIN_ORDER..=MAX_ORDER).contains(&order) {
        return Err(Error::Order { order, min: MIN_ORDER, max: MAX_ORDER });
    }
    let (layout, derivatives) = (layout(&kernels)?, derivatives_of(kernels.far.values));
    let facts = Facts { near64: pairs.near.1.clone(), layout, derivatives, kernels };
    Ok(match settings.precision {
        Precision::F32 => Box::new(Plan::new(facts, pairs.near.0.clone(), tree, lists, settings, options)?),
        Precision::F64 => Box::new(Plan::new(facts, pairs.near.1.clone(), tree, lists, settings, options)?),
    })
}

/// The kernels, and what harmonics make of them.
pub(super) struct Facts {
    /// Strengths → values in f64.
    pub near64: Pair<f64>,
    pub layout: Layout,
    /// Highest derivative among the values: 0, 1 or 2.
    pub derivatives: usize,
    pub kernels: Kernels,
}

/// The plan of the method by spherical harmonics: all that does not change between applications. `T` is the precision
/// of the far field. The plan has no kernel types, so that it is compiled once for all families.
pub struct Plan<T: Real> {
    pub(super) facts: Facts,
    /// Strengths → values of the near field.
    pub(super) near: Pair<T>,
    pub(super) tree: Tree,
    pub(super) lists: Lists,
    pub(super) settings: Settings,
    pub(super) basis: Basis<T>,
    pub(super) gradient: Gradient<T>,
    pub(super) translations: Translations<T>,
    pub(super) leaves: Leaves,
    /// The form of multipoles as polynomials, for orders and values where polynomials are faster.
    pub(super) horner: Option<Horner<T>>,
    pub(super) far: Far,
    /// The near field, if another processor sums it.
    pub(super) elsewhere: Option<Arc<dyn NearField>>,
    options: SphericalOptions,
    pub(super) points: Pool<Scratch<T>>,
    pub(super) near64: Pool<Scratch<f64>>,
    pub(super) coefficients: Pool<Coefficients<T>>,
    workspaces: Workspaces<Workspace<T>>,
}

/// Arrays of one application.
#[derive(Default)]
pub(super) struct Workspace<T> {
    /// `strengths[component][tree position]`.
    pub strengths: Vec<Vec<f64>>,
    pub multipoles: Vec<T>,
    pub locals: Vec<T>,
    /// For each box of [`Far::boxes`] its multipole as a polynomial or, without [`Plan::horner`], the coefficients
    /// `[harmonic][value]` of the potential and its derivatives.
    pub fields: Vec<T>,
    /// `values[tree position][value]`.
    pub values: Vec<f64>,
}

/// The region where expansions in spherical harmonics are valid.
const REGION: Region = Region { m2p: expansion::m2p_valid, m2l: expansion::m2l_valid, p2l: expansion::p2l_valid };

/// The M2P edges of a plan, sorted for fast evaluation.
#[derive(Default)]
pub(super) struct Far {
    /// Boxes whose multipoles are evaluated at targets, sorted.
    pub boxes: Vec<u32>,
    /// The cubes of `boxes`.
    pub cubes: Vec<Cube>,
    /// Edges (place of the source in `boxes`, number of degrees), row by row as in the lists. A row is sorted by number
    /// of degrees, so that successive loops over degrees have the same length.
    pub edges: Vec<(u32, u8)>,
}

impl Far {
    fn new(tree: &Tree, lists: &Lists, order: usize, options: &SphericalOptions) -> Self {
        if lists.m2p.is_empty() {
            return Far::default();
        }
        let all: Vec<Cube> = (0..tree.len()).map(|b| cube(tree, b)).collect();
        let share = |t: usize, s: u32| options.truncation.of_m2p(options.theta, all[t], all[s as usize]);
        let mut place = vec![0; all.len()];
        lists.m2p.sources.iter().for_each(|&b| place[b as usize] = 1);
        let boxes: Vec<u32> = (0..all.len() as u32).filter(|&b| place[b as usize] == 1).collect();
        boxes.iter().enumerate().for_each(|(i, &b)| place[b as usize] = i as u32);
        let row = |t: usize| {
            let edge = |&s: &u32| (place[s as usize], degrees(order, share(t, s)) as u8);
            let mut edges: Vec<(u32, u8)> = lists.m2p.row(t).iter().map(edge).collect();
            edges.sort_unstable_by_key(|&(s, degrees)| (degrees, s));
            edges
        };
        let edges = (0..all.len()).into_par_iter().flat_map_iter(row).collect();
        Far { cubes: boxes.iter().map(|&b| all[b as usize]).collect(), boxes, edges }
    }

    fn bytes(&self) -> u64 {
        (self.boxes.len() * (4 + size_of::<Cube>()) + self.edges.len() * size_of::<(u32, u8)>()) as u64
    }
}

impl<T: Real> Plan<T> {
    fn new(
        facts: Facts,
        near: Pair<T>,
        tree: Tree,
        lists: Lists,
        settings: &Settings,
        options: SphericalOptions,
    ) -> Result<Self, Error> {
        admissible::check(&tree, &lists, &REGION)?;
        // The recursions need one more degree per derivative. Dipole sources take one derivative, as a gradient does.
        let (p, more) = (settings.order, facts.derivatives.max(1));
        Ok(Plan {
            basis: Basis::new(p + more),
            gradient: Gradient::new(p + more),
            translations: Translations::new(&tree, &lists, p, options)?,
            leaves: Leaves::new(&tree),
            horner: (p <= horner::MAX_ORDER && facts.derivatives < 2).then(|| Horner::new(p)),
            far: Far::new(&tree, &lists, p, &options),
            elsewhere: settings.near_of(&facts.kernels, &tree, &lists)?,
            options,
            points: Pool::new(Default::default),
            near64: Pool::new(Default::default),
            coefficients: Pool::new(Default::default),
            workspaces: Workspaces::default(),
            facts,
            near,
            tree,
            lists,
            settings: settings.clone(),
        })
    }

    /// Number of scalars in a row of `multipoles` or `locals`.
    pub(super) fn row(&self) -> usize {
        self.settings.order * self.settings.order
    }

    /// Number of scalars per box in `fields`.
    pub(super) fn field(&self) -> usize {
        match &self.horner {
            Some(_) => horner::len(self.settings.order),
            None => (self.settings.order + self.facts.derivatives).pow(2) * self.facts.near64.values(),
        }
    }

    /// Number of scalars in all multipoles, and in all locals. 0 if no edge uses multipoles or locals.
    pub(super) fn rows(&self) -> [usize; 2] {
        let all = self.tree.len() * self.row();
        let multipoles = self.lists.have_multipoles() || ranks::active(&self.tree);
        [multipoles, self.lists.have_locals()].map(|have| if have { all } else { 0 })
    }
}

impl<T: Real> Solver for Plan<T> {
    fn values(&self) -> usize {
        self.facts.near64.values()
    }
    fn columns(&self) -> &[OutputColumns] {
        &self.facts.kernels.columns
    }

    fn apply(&self, strengths: &[f64], out: &mut [f64], observer: Observer) -> Result<StageSeconds, Error> {
        let (sources, targets) = (self.tree.sources.len(), self.tree.targets.len());
        let expected = [sources * self.facts.near64.strengths(), targets * self.values()];
        check_shapes([strengths.len(), expected[0]], [out.len(), expected[1]])?;
        let mut run = Run::new(self, self.workspaces.take(), strengths, out);
        let done = evaluate(&mut run, &self.lists, observer);
        let (workspace, seconds) = run.finish();
        self.workspaces.put(workspace);
        done.map(|()| seconds)
    }

    fn bytes(&self) -> u64 {
        let rows = self.rows().iter().sum::<usize>() + self.far.boxes.len() * self.field();
        let points = self.tree.sources.len() * self.facts.near64.strengths() + self.tree.targets.len() * self.values();
        let arranged = self.translations.bytes() + self.far.bytes() + self.horner.as_ref().map_or(0, Horner::bytes);
        let arranged = arranged + self.coefficients.bytes(Coefficients::bytes);
        self.tree.bytes() + self.lists.bytes() + arranged + (rows * size_of::<T>() + points * 8) as u64
    }
}

impl<T: Real> OctreeSolver for Plan<T> {
    fn tree(&self) -> &Tree {
        &self.tree
    }
    fn lists(&self) -> &Lists {
        &self.lists
    }
    fn set_tree(&mut self, tree: Tree, lists: Lists) -> Result<(), Error> {
        admissible::check(&tree, &lists, &REGION)?;
        let far = Far::new(&tree, &lists, self.settings.order, &self.options);
        let near = self.settings.near_of(&self.facts.kernels, &tree, &lists)?;
        self.translations.set_tree(&tree, &lists)?;
        (self.leaves, self.far, self.elsewhere) = (Leaves::new(&tree), far, near);
        (self.tree, self.lists) = (tree, lists);
        Ok(())
    }
}
