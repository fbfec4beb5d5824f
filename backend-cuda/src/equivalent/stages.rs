//! The stages of equivalent densities on the device, each enqueued as a whole: `kernels/{p2m,multiply,l2p}.cu`.

use super::DeviceScalar;
use super::fourier::Families;
use super::plan::{Edges, Equivalent, Placed, VList};
use crate::arrange::{Items, Upward};
use crate::base::Base;
use crate::device::{Arg, Buffer, blocks};
use crate::lists::DeviceEdges;
use crate::products::{ALL_ROWS, Dense, Which};
use crate::programs::surface_shape;
use crate::ranks::{Ranks, Row};
use crate::tasks::Tasks;
use fmm_traits::Error;

/// Threads per block in the kernels of `p2m.cu` for net strengths.
const NET_THREADS: u32 = 128;

impl<T: DeviceScalar> Equivalent<T> {
    /// The strengths of the sources in this far field.
    fn strengths<'a>(&self, base: &'a Base, w: &'a Placed<T>) -> &'a Buffer<f64> {
        if self.part.is_some() { &w.workspace.strengths } else { &base.strengths }
    }

    /// Enqueues the surface solve for the items of a level: check values → densities.
    ///
    /// # Safety
    /// The items of a level exist, and `middle` holds a row for each.
    unsafe fn solve(
        &self,
        w: &Placed<T>,
        factors: &[Dense<T>; 2],
        items: &Items,
        level: usize,
        densities: &Buffer<T>,
    ) -> Result<(), Error> {
        let ([second, first_factor], (first, count)) = (factors, items.of(level));
        let (w, shape, products) = (&w.workspace, &self.shape, &self.programs.products);
        let (rank, rows) = (first_factor.rows, items.boxes.at(first));
        let middle = (&w.middle, rank, ALL_ROWS);
        // SAFETY: the caller promises what the callee asks for.
        unsafe {
            let all = Which::All(count);
            products.multiply(first_factor, (&w.check, shape.check, rows), middle, all, 1.0, false)?;
            products.multiply(second, middle, (densities, shape.density, rows), all, 1.0, false)
        }
    }

    /// Enqueues the upward solve of the items of a level, with their net strengths. `children` are the edges from the
    /// children of the items; without, the items are leaves.
    ///
    /// # Safety
    /// As [`solve`](Self::solve).
    unsafe fn solve_upward(
        &self,
        base: &Base,
        w: &Placed<T>,
        items: &Items,
        level: usize,
        children: Option<&DeviceEdges>,
    ) -> Result<(), Error> {
        let (operators, (first, count)) = (self.operators(w, level), items.of(level));
        // SAFETY: the caller promises what the callee asks for.
        unsafe { self.solve(w, &operators.upward, items, level, &w.workspace.multipoles)? };
        let (device, functions, items) = (base.device(), &self.programs.p2m, items.boxes.at(first));
        let (width, strengths) = (operators.units.len() as u32, Arg::from(self.strengths(base, w)));
        for (k, (strength, unit)) in operators.units.iter().enumerate().filter(|_| count > 0) {
            let (nets, strength) = (Arg::from(&w.workspace.nets), Arg::from(*strength as u32));
            let entry = [nets, width.into(), (k as u32).into()];
            let leaves = [(&base.boxes).into(), items, strengths, strength, entry[0], entry[1], entry[2]];
            let from = |e: &DeviceEdges| {
                [items, (count as u32).into(), (&e.starts).into(), (&e.sources).into(), entry[0], entry[1], entry[2]]
            };
            let rest = [strength, unit.into(), (self.shape.density as u32).into(), (&w.workspace.multipoles).into()];
            let head = [(&base.boxes).into(), (&w.tables.p2m).into(), items];
            let args: Vec<Arg> = head.into_iter().chain(entry).chain(rest).collect();
            let (grid, threads) = ((blocks(count, 1)?, 1), (blocks(count, NET_THREADS as usize)?, 1));
            // SAFETY: arguments as in p2m.cu; multipoles and net strengths have a row for each box.
            unsafe {
                match children {
                    None => device.launch(functions, "net_of_sources", grid, NET_THREADS, &leaves)?,
                    Some(e) => device.launch(functions, "net_of_children", threads, NET_THREADS, &from(e))?,
                }
                device.launch(functions, "add_net", grid, NET_THREADS, &args)?;
            }
        }
        Ok(())
    }

    /// Enqueues M2M along `edges`, which `up` arranges, into the boxes of a level.
    fn upward(
        &self,
        base: &Base,
        w: &Placed<T>,
        (up, edges): (&Upward, &DeviceEdges),
        level: usize,
    ) -> Result<(), Error> {
        if up.parents.of(level).1 == 0 {
            return Ok(());
        }
        let (rows, products) = (&w.workspace, &self.programs.products);
        // First each child is translated into its own row of check values, which is no longer needed. Then the rows
        // of a family are added to the row of the parent.
        let from = (&rows.multipoles, self.shape.density, (&up.edges.from).into());
        let to = (&rows.check, self.shape.check, (&up.edges.from).into());
        let operators = self.operators(w, level);
        // SAFETY: the edges exist, and a box has one parent; the items of a level exist, and `middle` holds a row for
        // each.
        unsafe {
            products.multiply(&operators.m2m, from, to, up.edges.groups(level + 1), 1.0, false)?;
            products.add_rows(&up.parents, level, edges, self.shape.check, &rows.check, &rows.check)?;
            self.solve_upward(base, w, &up.parents, level, Some(edges))
        }
    }

    fn m2l_fourier(&self, base: &Base, w: &Placed<T>, families: &Families<T>) -> Result<(), Error> {
        let programs = [&self.programs.dft, &self.programs.m2l_fourier];
        let (device, rows) = (base.device(), &w.workspace);
        // Every level with a V list has spectra.
        let operators = |level: usize| self.operators(w, level).fourier.as_ref().unwrap_or(&self.no_spectra);
        // SAFETY: multipoles and check values have a row for each box.
        unsafe { families.enqueue(device, programs, &self.shape, &operators, &rows.multipoles, &rows.check) }
    }

    /// Enqueues P2M into the boxes of `items`, or P2L into all boxes if `items` is `None`.
    fn to_surface(
        &self,
        base: &Base,
        w: &Placed<T>,
        edges: &DeviceEdges,
        items: Option<&Buffer<u32>>,
        [surface, levels]: [&Buffer<f64>; 2],
    ) -> Result<(), Error> {
        let args = [
            (&base.boxes).into(),
            levels.into(),
            items.map_or(ALL_ROWS, Arg::from),
            (&edges.starts).into(),
            (&edges.sources).into(),
            surface.into(),
            (self.shape.points as u32).into(),
            (&base.tree.sources.xyz).into(),
            (base.tree.sources.len() as u64).into(),
            self.strengths(base, w).into(),
            (&w.workspace.check).into(),
        ];
        let count = items.map_or(base.tree.len(), Buffer::len);
        let block = surface_shape(self.shape.points).0 as u32;
        // SAFETY: arguments as in p2m.cu; check has a row for each box.
        unsafe { base.device().launch(&self.programs.p2m, "to_surface", (blocks(count, 1)?, 1), block, &args) }
    }

    /// Enqueues L2P or M2P: the field of densities on a surface, and of the affine part if there is one, at the targets
    /// of leaves.
    fn at_targets(
        &self,
        base: &Base,
        (edges, tasks): (&DeviceEdges, &Tasks),
        [surface, levels]: [&Buffer<f64>; 2],
        densities: &Buffer<T>,
        [parts, part_row, of]: [Arg; 3],
    ) -> Result<(), Error> {
        let rest = [
            levels.into(),
            (&edges.sources).into(),
            surface.into(),
            (self.shape.points as u32).into(),
            densities.into(),
            (&base.tree.targets.xyz).into(),
            (base.tree.targets.len() as u64).into(),
            parts,
            part_row,
            of,
        ];
        // SAFETY: arguments as in l2p.cu; densities have a row for each box.
        unsafe { tasks.sum(base, edges, (&self.programs.l2p, "from_surface"), false, &rest) }
    }
}

/// The stages of [`FarField`](crate::far::FarField).
impl<T: DeviceScalar> Equivalent<T> {
    pub(super) fn p2m(&mut self, base: &Base, edges: &Edges<T>) -> Result<(), Error> {
        let Some(w) = self.placed_mut() else { return Ok(()) };
        base.device().clear(&mut w.workspace.check)?;
        if base.ranks().is_some_and(Ranks::adds) {
            base.device().clear(&mut w.workspace.multipoles)?;
            base.device().clear(&mut w.workspace.nets)?;
        }
        let Some(w) = self.placed() else { return Ok(()) };
        self.part.iter().try_for_each(|part| part.take(base, &w.workspace.strengths))?;
        let leaves = &edges.leaves;
        self.to_surface(base, w, &base.lists.p2m, Some(&leaves.boxes), [&w.tables.outer, &w.tables.p2m])?;
        for level in 0..w.sets.len() {
            // SAFETY: the items of a level exist, and `middle` holds a row for each.
            unsafe { self.solve_upward(base, w, leaves, level, None)? };
        }
        Ok(())
    }

    pub(super) fn m2m(&self, base: &Base, edges: &Edges<T>, level: usize) -> Result<(), Error> {
        let Some(w) = self.placed() else { return Ok(()) };
        self.upward(base, w, (&edges.m2m, &base.lists.m2m), level)
    }

    pub(super) fn exchange(&self, base: &Base, edges: &Edges<T>, ranks: &Ranks) -> Result<(), Error> {
        let Some(w) = self.placed() else { return Ok(()) };
        let nets = self.stock().next().map_or(0, |operators| operators.units.len());
        if nets > 0 {
            ranks.complete(Row::Nets, &w.workspace.nets, nets)?;
        }
        ranks.complete(Row::Multipoles, &w.workspace.multipoles, self.shape.density)?;
        let Some(after) = &edges.after else { return Ok(()) };
        (0..w.sets.len()).rev().try_for_each(|level| self.upward(base, w, (after, &ranks.after), level))
    }

    pub(super) fn m2l(&mut self, base: &Base, edges: &Edges<T>) -> Result<(), Error> {
        let Some(w) = self.placed_mut() else { return Ok(()) };
        base.device().clear(&mut w.workspace.check)?;
        let Some(w) = self.placed() else { return Ok(()) };
        match &edges.m2l {
            VList::None => Ok(()),
            VList::Fourier(families) => self.m2l_fourier(base, w, families),
            VList::Dense(far) => {
                let (rows, lengths) = (&w.workspace, [self.shape.check, self.shape.density]);
                // Operators that were made for new points, which are not yet there, have no edges in this table.
                for (set, operators) in self.stock().take(far.sets()).enumerate() {
                    let Some(matrices) = &operators.dense else { continue };
                    let products = &self.programs.products;
                    // SAFETY: both arrays have a row for each box; a surface has an even number of points.
                    unsafe { products.across(matrices, lengths, far, set, &rows.multipoles, &rows.check)? };
                }
                Ok(())
            }
        }
    }

    pub(super) fn p2l(&self, base: &Base) -> Result<(), Error> {
        match self.placed() {
            Some(w) if !base.lists.p2l.is_empty() => {
                self.to_surface(base, w, &base.lists.p2l, None, [&w.tables.inner, &w.tables.p2l])
            }
            _ => Ok(()),
        }
    }

    pub(super) fn l2l(&self, base: &Base, edges: &Edges<T>, level: usize) -> Result<(), Error> {
        let Some(w) = self.placed().filter(|_| edges.active.of(level).1 > 0) else { return Ok(()) };
        let (edges, active, rows) = (&edges.l2l, &edges.active, &w.workspace);
        if level > 0 && edges.any(level) {
            // The L2L operator belongs to the level of the parents.
            let operators = self.operators(w, level - 1);
            let from = (&rows.locals, self.shape.density, (&edges.from).into());
            let to = (&rows.check, self.shape.check, (&edges.to).into());
            let (groups, factor) = (edges.groups(level), operators.l2l_factor);
            // SAFETY: a box has one parent; the edges exist.
            unsafe { self.programs.products.multiply(&operators.l2l, from, to, groups, factor, true)? };
        }
        let downward = &self.operators(w, level).downward;
        // SAFETY: levels come in order; the items of a level exist, and `middle` holds a row for each.
        unsafe {
            self.separate(base, w, active, level)?;
            self.solve(w, downward, active, level, &rows.locals)
        }
    }

    pub(super) fn l2p(&self, base: &Base) -> Result<(), Error> {
        let Some(w) = self.placed() else { return Ok(()) };
        let edges = (&base.lists.l2p, &base.l2p);
        let nodes = [&w.tables.outer, &w.tables.l2p];
        self.at_targets(base, edges, nodes, &w.workspace.locals, w.affine.at_targets())
    }

    pub(super) fn m2p(&self, base: &Base) -> Result<(), Error> {
        let Some(w) = self.placed() else { return Ok(()) };
        let edges = (&base.lists.m2p, &base.m2p);
        let tables = [&w.tables.inner, &w.tables.m2p];
        self.at_targets(base, edges, tables, &w.workspace.multipoles, [Arg::NULL, 0u32.into(), Arg::NULL])
    }

    /// True for densities of one component. With several components, M2L fills the device.
    pub(super) fn leaves_room(&self) -> bool {
        self.shape.density == self.shape.points
    }
}
