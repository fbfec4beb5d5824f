//! The plan of the equivalent-density method: operators, sorted edges and workspaces.

use super::dft::Dft;
use super::field::{Field, Shared};
use super::points::Nodes;
use super::{families, m2l, stages::Run, translate};
use crate::admissible::{self, Region};
use crate::application::{Workspaces, check_shapes};
use crate::frame::Scratch;
use crate::leaves::Leaves;
use crate::pairs::{Pair, Pairs};
use crate::pool::Pool;
use crate::{OctreeSolver, Settings, ranks};
use fmm_kernels::equivalent::{Fill, Lattice, Scalar, expansion};
use fmm_traits::{
    Error, Kernels, Lists, NearField, Observer, OutputColumns, Precision, Solver, StageSeconds, Tree, evaluate,
};
use std::sync::Arc;

/// Plans the equivalent-density method for `kernels` on `tree` and `lists`, in the current rayon pool. `fill` says
/// whether densities lie on a surface or in a volume.
///
/// # Errors
/// The order is out of range, or an edge of the lists is outside the region where equivalent densities are valid.
pub fn plan(
    kernels: Kernels,
    pairs: &Pairs,
    tree: Tree,
    lists: Lists,
    settings: &Settings,
    fill: Fill,
) -> Result<Box<dyn OctreeSolver>, Error> {
    let lattice = Lattice { order: settings.order, fill, dim: kernels.members.equivalent.dim };
    let [near64, far64] = [&pairs.near.1, &pairs.far.1].map(Clone::clone);
    Ok(match settings.precision {
        Precision::F32 => {
            let [near, check, far] = [&pairs.near.0, &pairs.check.0, &pairs.far.0].map(Clone::clone);
            let loops = Loops { near, near64, check, far, far64 };
            Box::new(Plan::<f32>::new(kernels, loops, tree, lists, settings, lattice)?)
        }
        Precision::F64 => {
            let [near, check, far] = [&pairs.near.1, &pairs.check.1, &pairs.far.1].map(Clone::clone);
            let loops = Loops { near, near64, check, far, far64 };
            Box::new(Plan::<f64>::new(kernels, loops, tree, lists, settings, lattice)?)
        }
    })
}

/// The pair loops of a plan. `T` is the precision of the far field.
pub(super) struct Loops<T> {
    /// Strengths → values in the near field.
    pub near: Pair<T>,
    /// Strengths → values in f64, for leaves whose sums leave the range of `T`.
    pub near64: Pair<f64>,
    /// Strengths → check values.
    pub check: Pair<T>,
    /// Densities → values.
    pub far: Pair<T>,
    /// Densities → values in f64.
    pub far64: Pair<f64>,
}

/// The plan of the equivalent-density method: all that does not change between applications. `T` is the precision of
/// the far field. Kernels enter as [`Kernels`], not as types.
pub struct Plan<T: Scalar> {
    pub(super) kernels: Kernels,
    pub(super) loops: Loops<T>,
    pub(super) tree: Tree,
    pub(super) lists: Lists,
    pub(super) settings: Settings,
    /// The points of densities and check values.
    lattice: Lattice,
    /// The far field of each node of the attributes.
    pub(super) fields: Vec<Field<T>>,
    pub(super) inner: Nodes<T>,
    pub(super) inner64: Nodes<f64>,
    pub(super) outer: Nodes<T>,
    pub(super) dft: Dft<T>,
    pub(super) geometry: Geometry,
    /// The near field, if another processor sums it.
    pub(super) elsewhere: Option<Arc<dyn NearField>>,
    pub(super) pools: Pools<T>,
    workspaces: Workspaces<Workspace<T>>,
}

/// Data derived from the tree and the lists.
pub(super) struct Geometry {
    pub m2l: Vec<families::Families>,
    /// Whether each box has a local.
    pub active: Vec<bool>,
    pub leaves: Leaves,
}

/// Scratch per thread.
pub(super) struct Pools<T: Scalar> {
    pub translate: Pool<translate::Scratch<T>>,
    pub points: Pool<Scratch<T>>,
    pub near64: Pool<Scratch<f64>>,
    pub m2l: Pool<m2l::Scratch<T>>,
}

/// The expansions of one far field.
#[derive(Default)]
pub(super) struct Expansions<T> {
    /// `net[set and kept component][box]`: hatted net strengths. Components without a source strength are left out.
    pub net: Vec<Vec<T>>,
    /// Degree and net strengths before hatting, on several ranks.
    pub sums: Vec<(i32, Vec<f64>)>,
    pub multipoles: Vec<T>,
    pub locals: Vec<T>,
}

/// Arrays of one application.
#[derive(Default)]
pub(super) struct Workspace<T> {
    /// `strengths[set and component][tree position]`.
    pub strengths: Vec<Vec<f64>>,
    /// The strengths of each far field, if there are several; else all far fields have those above.
    pub parts: Vec<Vec<Vec<f64>>>,
    /// For each far field.
    pub expansions: Vec<Expansions<T>>,
    /// `values[tree position][set][value]`.
    pub values: Vec<f64>,
    pub spectra: Vec<T>,
}

impl<T> Expansions<T> {
    /// Numbers held.
    fn numbers(&self) -> usize {
        self.net.iter().map(Vec::capacity).sum::<usize>() + self.multipoles.capacity() + self.locals.capacity()
    }
}

impl<T> Workspace<T> {
    /// The strengths of far field `k`.
    pub fn strengths_of(&self, k: usize) -> &[Vec<f64>] {
        self.parts.get(k).unwrap_or(&self.strengths)
    }

    fn bytes(&self) -> u64 {
        let strengths = self.parts.iter().flatten().chain(&self.strengths).map(Vec::capacity).sum::<usize>();
        let numbers = self.expansions.iter().map(Expansions::numbers).sum::<usize>() + self.spectra.capacity();
        ((strengths + self.values.capacity()) * size_of::<f64>() + numbers * size_of::<T>()) as u64
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
    /// Number of families of the level that has most.
    pub(super) fn largest_level(&self) -> usize {
        self.m2l.iter().map(|l| l.parents.len()).max().unwrap_or(0)
    }
}

/// The region where equivalent densities are valid. [`families::arrange`] checks M2L.
const REGION: Region = Region { m2p: expansion::m2p_valid, m2l: |_, _| true, p2l: expansion::p2l_valid };

impl<T: Scalar> Plan<T> {
    fn new(
        kernels: Kernels,
        loops: Loops<T>,
        tree: Tree,
        lists: Lists,
        settings: &Settings,
        lattice: Lattice,
    ) -> Result<Self, Error> {
        lattice.validate()?;
        let geometry = Geometry::new(&tree, &lists)?;
        let dft = Dft::new(lattice, settings.isa);
        let pools = Pools {
            translate: Pool::new(Default::default),
            points: Pool::new(Default::default),
            near64: Pool::new(Default::default),
            m2l: Pool::new(|| m2l::Scratch::new(&dft)),
        };
        let mut plan = Plan {
            kernels,
            loops,
            tree,
            lists,
            settings: settings.clone(),
            lattice,
            fields: Vec::new(),
            inner: Nodes::new(&lattice.inner()),
            inner64: Nodes::new(&lattice.inner()),
            outer: Nodes::new(&lattice.outer()),
            dft,
            geometry,
            elsewhere: None,
            pools,
            workspaces: Workspaces::default(),
        };
        plan.fields = plan.fields(&plan.tree, &plan.lists, &plan.geometry)?;
        plan.elsewhere = settings.near_of(&plan.kernels, &plan.tree, &plan.lists)?;
        Ok(plan)
    }

    /// The far fields for a tree and its lists.
    fn fields(&self, tree: &Tree, lists: &Lists, geometry: &Geometry) -> Result<Vec<Field<T>>, Error> {
        let Plan { kernels, settings, lattice, dft, .. } = self;
        Shared { kernels, settings, lattice: *lattice, dft, tree, lists, geometry }.fields()
    }

    /// Number of components of an equivalent density, and of check values.
    fn densities_and_checks(&self) -> [usize; 2] {
        [self.kernels.members.equivalent.strengths, self.kernels.members.equivalent.values]
    }

    /// Number of scalars in all multipoles of a far field, and in all its locals. 0 if no edge uses multipoles or
    /// locals.
    pub(super) fn rows(&self, field: &Field<T>) -> [usize; 2] {
        let numbers = |have: bool, row: usize| if have { self.tree.len() * row } else { 0 };
        [
            numbers(self.lists.have_multipoles() || ranks::active(&self.tree), self.multipole_row()),
            numbers(self.lists.have_locals(), self.local_row(field)),
        ]
    }

    /// Number of scalars in a row of `multipoles`.
    pub(super) fn multipole_row(&self) -> usize {
        self.densities_and_checks()[0] * self.lattice.len()
    }

    /// Number of scalars in a row of `locals`. A row holds check values, later a density, and at its end the affine
    /// part.
    pub(super) fn local_row(&self, field: &Field<T>) -> usize {
        let [densities, checks] = self.densities_and_checks();
        densities.max(checks) * self.lattice.len() + field.affine.len()
    }
}

impl<T: Scalar> Solver for Plan<T> {
    fn values(&self) -> usize {
        self.loops.far.values()
    }
    fn columns(&self) -> &[OutputColumns] {
        &self.kernels.columns
    }

    fn apply(&self, strengths: &[f64], out: &mut [f64], observer: Observer) -> Result<StageSeconds, Error> {
        self.apply_batch(&[strengths], &mut [out], observer)
    }

    fn together(&self) -> usize {
        self.loops.near64.together()
    }

    fn bytes_of_a_set(&self) -> u64 {
        let rows: usize = self.fields.iter().flat_map(|field| self.rows(field)).sum();
        // Strengths as they are, and those of several far fields.
        let strengths = self.loops.near64.strengths() * (1 + self.fields.len() * usize::from(self.fields.len() > 1));
        let points = self.tree.sources.len() * strengths + self.tree.targets.len() * self.loops.far.values();
        let own = (rows * size_of::<T>() + points * 8) as u64;
        let shares = self.sets_at_once(self.geometry.largest_level()) > 1;
        own + if shares { self.bytes_of_spectra() } else { 0 }
    }

    fn apply_batch(
        &self,
        strengths: &[&[f64]],
        out: &mut [&mut [f64]],
        observer: Observer,
    ) -> Result<StageSeconds, Error> {
        let (sources, targets) = (self.tree.sources.len(), self.tree.targets.len());
        let expected = [sources * self.loops.near64.strengths(), targets * self.loops.far.values()];
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
        let shares = self.sets_at_once(self.geometry.largest_level()) > 1;
        let workspace = self.bytes_of_a_set() + if shares { 0 } else { self.bytes_of_spectra() };
        self.tree.bytes()
            + self.lists.bytes()
            + self.fields.iter().map(Field::bytes).sum::<u64>()
            + workspace.max(self.workspaces.bytes(Workspace::bytes))
    }
}

impl<T: Scalar> Plan<T> {
    /// Bytes of the spectra of one set of strengths on the level of most families.
    fn bytes_of_spectra(&self) -> u64 {
        let numbers = m2l::spectra_len(&self.dft, self.geometry.largest_level(), self.components());
        (numbers * size_of::<T>()) as u64
    }
    /// Number of sets of strengths for which M2L runs at a time on a level with `families` families.
    pub(super) fn sets_at_once(&self, families: usize) -> usize {
        m2l::sets_at_once(&self.dft, self.components(), families, self.geometry.largest_level())
    }
    /// Components of a spectrum: those of a density or of a check value, whichever are more.
    fn components(&self) -> usize {
        let [densities, checks] = self.densities_and_checks();
        densities.max(checks)
    }
}

impl<T: Scalar> OctreeSolver for Plan<T> {
    fn tree(&self) -> &Tree {
        &self.tree
    }
    fn lists(&self) -> &Lists {
        &self.lists
    }
    fn set_tree(&mut self, tree: Tree, lists: Lists) -> Result<(), Error> {
        let geometry = Geometry::new(&tree, &lists)?;
        let (fields, near) =
            (self.fields(&tree, &lists, &geometry)?, self.settings.near_of(&self.kernels, &tree, &lists)?);
        (self.fields, self.elsewhere) = (fields, near);
        (self.tree, self.lists, self.geometry) = (tree, lists, geometry);
        Ok(())
    }
}
