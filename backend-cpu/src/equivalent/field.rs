//! A far field: operators and parameters by level for one value of the attributes of sources.

use super::dft::Dft;
use super::m2l;
use super::plan::Geometry;
use crate::frame::Frame;
use crate::{Settings, ranks};
use fmm_kernels::equivalent::{Affine, Lattice, OperatorSet, Operators, Scalar};
use fmm_traits::{Error, Kernels, Lists, Tree};
use rayon::prelude::*;
use std::sync::Arc;

/// What the far field of one [node](fmm_traits::Nodes) needs beside tree and lists. A kernel without attributes has one.
pub(super) struct Field<T: Scalar> {
    pub operators: Vec<Arc<Operators<T>>>,
    /// Parameters of the kernels on the unit box, by level.
    pub params: Vec<Vec<T>>,
    /// Parameters with which densities are solved for, by level ([`fmm_kernels::equivalent::gauge`]). Empty without a
    /// far field.
    pub own_params: Vec<Vec<T>>,
    /// Parameters on the unit box for [`Frame::plain`].
    pub plain_params: Vec<f64>,
    pub affine: Affine<T>,
    pub tables: Vec<Option<Arc<m2l::Table<T>>>>,
}

impl<T: Scalar> Field<T> {
    /// Bytes of operators and tables.
    pub fn bytes(&self) -> u64 {
        let mut tables: Vec<&Arc<m2l::Table<T>>> = self.tables.iter().flatten().collect();
        tables.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let mut operators: Vec<&Arc<Operators<T>>> = self.operators.iter().collect();
        operators.dedup_by(|a, b| Arc::ptr_eq(a, b));
        tables.iter().map(|t| t.bytes()).sum::<u64>() + operators.iter().map(|o| o.bytes() as u64).sum::<u64>()
    }
}

/// What the far fields of a plan share.
pub(super) struct Shared<'a, T: Scalar> {
    pub kernels: &'a Kernels,
    pub settings: &'a Settings,
    pub lattice: Lattice,
    pub dft: &'a Dft<T>,
    pub tree: &'a Tree,
    pub lists: &'a Lists,
    pub geometry: &'a Geometry,
}

impl<T: Scalar> Shared<'_, T> {
    /// The far field of each node, made side by side.
    pub fn fields(&self) -> Result<Vec<Field<T>>, Error> {
        let Kernels { nodes, params, .. } = self.kernels;
        (0..nodes.count()).into_par_iter().map(|k| self.field(&nodes.parameters(params, k))).collect()
    }

    /// The far field for `given` parameters, in the user's units.
    fn field(&self, given: &[f64]) -> Result<Field<T>, Error> {
        let Kernels { near, far, members, .. } = self.kernels;
        let (equivalent, tree) = (&members.equivalent, self.tree);
        let operators = self.operators(given)?;
        let sides = (0..tree.levels()).map(|l| tree.side_at(l));
        Ok(Field {
            params: sides.map(|h| near.unit_parameters(given, h).into_iter().map(T::of).collect()).collect(),
            own_params: operators.iter().map(|o| o.params.iter().map(|&x| T::of(x)).collect()).collect(),
            plain_params: near.unit_parameters(given, Frame::plain(tree).side),
            affine: Affine::new(members, far, &equivalent.unit_parameters(given, tree.side_at(0)), self.lattice),
            tables: self.tables(given),
            operators,
        })
    }

    /// Operators of the levels of the tree, made side by side. Empty if the lists have no far field. A level without
    /// multipoles and locals gets those of another level, which nobody reads.
    fn operators(&self, given: &[f64]) -> Result<Vec<Arc<Operators<T>>>, Error> {
        let Shared { kernels: Kernels { members, .. }, tree, lists, .. } = self;
        let has = |level: usize| {
            let boxes = tree.level(level);
            let receive = [&lists.p2m, &lists.m2m, &lists.m2l, &lists.p2l, &lists.l2l];
            receive
                .into_iter()
                .chain(ranks::after(tree))
                .any(|edges| edges.starts[boxes.start] < edges.starts[boxes.end])
        };
        let mut used: Vec<usize> = (0..tree.levels()).filter(|&level| has(level)).collect();
        if used.is_empty() && ranks::active(tree) {
            // All multipoles come from other ranks, and go to targets.
            used.push(tree.levels() - 1);
        }
        let Some(&last) = used.last() else { return Ok(Vec::new()) };
        let of = |&level: &usize| -> Result<Arc<Operators<T>>, Error> {
            let (side, cache) = (tree.side_at(level), self.settings.cache.as_deref());
            Ok(OperatorSet::of(members, given, &[side], self.lattice, cache)?.level(0).clone())
        };
        if members.equivalent.dilated(given, 2.0).is_none() {
            return Ok(vec![of(&last)?; tree.levels()]);
        }
        let made: Vec<_> = used.par_iter().map(of).collect::<Result<_, _>>()?;
        let nearest = |level: usize| used.partition_point(|&u| u < level).min(used.len() - 1);
        Ok((0..tree.levels()).map(|level| made[nearest(level)].clone()).collect())
    }

    /// The M2L tables of the levels of the tree; `None` for a level without M2L.
    fn tables(&self, given: &[f64]) -> Vec<Option<Arc<m2l::Table<T>>>> {
        let Shared { kernels, settings, lattice, dft, tree, geometry, .. } = self;
        let kernel = &kernels.members.equivalent;
        let wanted: Vec<bool> = geometry.m2l.iter().map(|families| !families.is_empty()).collect();
        let params: Vec<Vec<f64>> =
            (0..tree.levels()).map(|l| kernel.unit_parameters(given, tree.side_at(l))).collect();
        // The first level with the same parameters has the table.
        let first = |level: usize| (0..level).find(|&l| wanted[l] && params[l] == params[level]).unwrap_or(level);
        let made: Vec<Option<Arc<m2l::Table<T>>>> = (0..wanted.len())
            .into_par_iter()
            .with_max_len(1)
            .map(|level| {
                (wanted[level] && first(level) == level)
                    .then(|| m2l::Table::shared(kernel, &params[level], dft, *lattice, settings.isa))
            })
            .collect();
        let table = |level: usize| if wanted[level] { made[first(level)].clone() } else { None };
        (0..wanted.len()).map(table).collect()
    }
}
