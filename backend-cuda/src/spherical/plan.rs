//! The stages of spherical harmonics on the device: `kernels/{p2m_harmonics,multiply,m2l,l2p_harmonics}.cu`.

use super::operators::{DeviceSparse, Translations, row, steps};
use crate::arrange::{Arranged, Items, Kind};
use crate::base::Base;
use crate::device::{Arg, Buffer, Device, Functions, blocks};
use crate::equivalent::DeviceScalar;
use crate::far::FarField;
use crate::levels::{Units, strength_degrees, value_degrees};
use crate::lists::DeviceEdges;
use crate::products::{Across, Products};
use crate::programs::{self, Groups, LEAF_THREADS};
use fmm_kernels::spherical::layout::{derivatives, layout};
use fmm_kernels::spherical::sparse::{self, Harmonics};
use fmm_kernels::spherical::{MAX_ORDER, MIN_ORDER, Truncation};
use fmm_traits::{Error, Family, Kernel};

/// Threads of `p2m_harmonics.cu`.
const WARP: u32 = 32;

/// The far field by spherical harmonics, with rows in `T`.
#[derive(Debug)]
pub(crate) struct Spherical<T: DeviceScalar> {
    order: usize,
    /// Degrees in length of strengths and values.
    strengths: Vec<i32>,
    values: Vec<i32>,
    p2m: Functions,
    l2p: Functions,
    products: Products,
    /// Coefficients of the recursions.
    steps: Buffer<T>,
    /// Sums over sources to rows, rows to coefficients of values: of regular and of singular harmonics.
    sources: [Side<T>; 2],
    targets: [Side<T>; 2],
    translations: Translations<T>,
    /// `None` before the first points.
    placed: Option<Placed<T>>,
}

/// One kind of harmonics where they meet points: their order, and what is done to them.
#[derive(Debug)]
struct Side<T> {
    order: usize,
    matrix: DeviceSparse<T>,
}

/// What the points decide.
#[derive(Debug)]
struct Placed<T> {
    /// Rows of `level.cuh` for P2M and P2L, for L2P and M2P.
    given: Buffer<f64>,
    wanted: Buffer<f64>,
    m2m: Arranged,
    m2l: Option<Across<T>>,
    l2l: Arranged,
    /// Boxes that receive edges.
    p2m: Items,
    parents: Items,
    p2l: Items,
    l2p: Items,
    m2p: Items,
    /// Blocks of L2P and M2P that share a leaf.
    parts: u32,
    /// A row a box.
    multipoles: Buffer<T>,
    /// On the way up the translated multipoles of children.
    locals: Buffer<T>,
}

/// Number of a kind of harmonics.
const REGULAR: usize = 0;
const SINGULAR: usize = 1;

impl<T: DeviceScalar> Spherical<T> {
    /// Of order `p` for a family whose source kernel is `S` and whose values are those of `E`; without points.
    ///
    /// # Errors
    /// [`Error::Order`], [`Error::Unsupported`] for a family without harmonics, and those of the device.
    pub fn new<F: Family, S: Kernel, E: Kernel>(
        device: &Device,
        family: &F,
        p: usize,
        truncation: Truncation,
    ) -> Result<Self, Error> {
        if !(MIN_ORDER..=MAX_ORDER).contains(&p) {
            return Err(Error::Order { order: p, min: MIN_ORDER, max: MAX_ORDER });
        }
        let (layout, derivatives) = (layout::<F, E>(family)?, derivatives::<E>());
        let kinds = [Harmonics::Regular, Harmonics::Singular];
        let source = |kind: Harmonics| -> Result<Side<T>, Error> {
            let matrix = sparse::sources(layout, kind, p, S::STRENGTHS);
            Ok(Side { order: sparse::source_order(layout, kind, p), matrix: DeviceSparse::new(device, &matrix)? })
        };
        let target = |kind: Harmonics| -> Result<Side<T>, Error> {
            let matrix = sparse::values(derivatives, kind, p);
            Ok(Side { order: sparse::value_order(derivatives, kind, p), matrix: DeviceSparse::new(device, &matrix)? })
        };
        let sources = [source(kinds[REGULAR])?, source(kinds[SINGULAR])?];
        let targets = [target(kinds[REGULAR])?, target(kinds[SINGULAR])?];
        let most = |sides: &[Side<T>; 2]| sides[REGULAR].order.max(sides[SINGULAR].order);
        Ok(Spherical {
            order: p,
            strengths: strength_degrees::<S>(),
            values: value_degrees::<E>(),
            p2m: device.load(&programs::p2m_harmonics_program::<T>(S::STRENGTHS, most(&sources)))?,
            l2p: device.load(&programs::l2p_harmonics_program::<T>(E::VALUES))?,
            products: Products::new::<T>(device)?,
            steps: steps(device, most(&sources).max(most(&targets)))?,
            sources,
            targets,
            translations: Translations::new(device, p, truncation)?,
            placed: None,
        })
    }

    /// The first arguments wherever harmonics of some kind meet points: boxes with rows of units, edges of some boxes, and what is done to a
    /// row.
    fn meeting(
        &self,
        base: &Base,
        units: &Buffer<f64>,
        Side { order, matrix }: &Side<T>,
        kind: usize,
        (edges, items): (&DeviceEdges, &Items),
    ) -> [Arg; 12] {
        [
            (&base.boxes).into(),
            (&base.corner).into(),
            units.into(),
            (&items.boxes).into(),
            (&edges.starts).into(),
            (&edges.sources).into(),
            (&self.steps).into(),
            (*order as u32).into(),
            (kind as u32).into(),
            (&matrix.starts).into(),
            (&matrix.columns).into(),
            (&matrix.entries).into(),
        ]
    }

    /// Enqueues P2M, over what is there, or P2L, added to it.
    fn of_sources(
        &self,
        base: &Base,
        w: &Placed<T>,
        kind: usize,
        (edges, items): (&DeviceEdges, &Items),
        to: &Buffer<T>,
    ) -> Result<(), Error> {
        let common = self.meeting(base, &w.given, &self.sources[kind], kind, (edges, items));
        let rest = [
            ((self.order * self.order) as u32).into(),
            (row(self.order) as u32).into(),
            (&base.tree.sources.xyz).into(),
            (base.tree.sources.len() as u64).into(),
            (&base.strengths).into(),
            u32::from(kind == SINGULAR).into(),
            to.into(),
        ];
        let args: Vec<Arg> = common.into_iter().chain(rest).collect();
        // SAFETY: arguments as in p2m_harmonics.cu; `to` has a row for each box.
        unsafe { base.device().launch(&self.p2m, "to_harmonics", (blocks(items.len(), 1)?, 1), WARP, &args) }
    }

    /// Enqueues L2P or M2P.
    fn at_targets(
        &self,
        base: &Base,
        w: &Placed<T>,
        kind: usize,
        (edges, items): (&DeviceEdges, &Items),
        from: &Buffer<T>,
    ) -> Result<(), Error> {
        let common = self.meeting(base, &w.wanted, &self.targets[kind], kind, (edges, items));
        let rest = [
            (row(self.order) as u32).into(),
            from.into(),
            (&base.tree.targets.xyz).into(),
            (base.tree.targets.len() as u64).into(),
            (&base.values).into(),
        ];
        let args: Vec<Arg> = common.into_iter().chain(rest).collect();
        let grid = (blocks(items.len(), 1)?, w.parts);
        // SAFETY: arguments as in l2p_harmonics.cu; `from` has a row for each box.
        unsafe { base.device().launch(&self.l2p, "from_harmonics", grid, LEAF_THREADS as u32, &args) }
    }
}

impl<T: DeviceScalar> FarField for Spherical<T> {
    fn place(&mut self, base: &Base) -> Result<(), Error> {
        let (lists, device, sides) = (&base.lists, base.device(), base.sides());
        let arranger = base.arranger()?;
        let m2l = if lists.m2l.is_empty() {
            None
        } else {
            self.translations.across(device)?;
            // All levels share one set of operators.
            let table = arranger.table(&lists.m2l, &self.products.m2l, &vec![0; sides.len()], 1)?;
            Some(self.products.far(table, row(self.order))?)
        };
        let numbers = if base.far() { base.tree.len() * row(self.order) } else { 0 };
        let units = Units { params: Vec::new(), unit: |_, _| Vec::new() };
        let by_child = 8 * sides.len();
        self.placed = Some(Placed {
            given: device.upload(&units.table(&sides, &[&self.strengths]), "levels")?,
            wanted: device.upload(&units.table(&sides, &[&self.values]), "levels")?,
            m2m: arranger.edges(&lists.m2m, Kind::M2m, by_child)?,
            m2l,
            l2l: arranger.edges(&lists.l2l, Kind::L2l, by_child)?,
            p2m: arranger.items([&lists.p2m; 3])?,
            parents: arranger.items([&lists.m2m; 3])?,
            p2l: arranger.items([&lists.p2l; 3])?,
            l2p: arranger.items([&lists.l2p; 3])?,
            m2p: arranger.items([&lists.m2p; 3])?,
            parts: base.parts(Groups::harmonics::<T>(self.values.len()).targets()),
            multipoles: device.zeros(numbers, "multipoles")?,
            locals: device.zeros(numbers, "locals")?,
        });
        Ok(())
    }

    fn p2m(&mut self, base: &Base) -> Result<(), Error> {
        let Some(w) = &self.placed else { return Ok(()) };
        self.of_sources(base, w, REGULAR, (&base.lists.p2m, &w.p2m), &w.multipoles)
    }

    fn m2m(&mut self, base: &Base, level: usize) -> Result<(), Error> {
        let Some(w) = self.placed.as_ref().filter(|w| w.parents.of(level).1 > 0) else { return Ok(()) };
        let length = row(self.order);
        // Each child into its own row among the locals, then the rows of a family into that of the parent.
        let from = (&w.multipoles, length, (&w.m2m.from).into());
        let to = (&w.locals, length, (&w.m2m.from).into());
        // SAFETY: the edges exist, and a box has one parent; both arrays have a row for each box.
        unsafe {
            self.products.multiply(&self.translations.m2m, from, to, w.m2m.groups(level + 1), 1.0, false)?;
            self.products.add_rows(&w.parents, level, &base.lists.m2m, length, &w.locals, &w.multipoles)
        }
    }

    fn m2l(&mut self, base: &Base) -> Result<(), Error> {
        let Some(w) = &mut self.placed else { return Ok(()) };
        base.device().clear(&mut w.locals)?;
        match (&w.m2l, &self.translations.m2l) {
            // SAFETY: rows of all boxes, of even length.
            (Some(far), Some(matrices)) => unsafe {
                self.products.across(matrices, [row(self.order); 2], far, 0, &w.multipoles, &w.locals)
            },
            _ => Ok(()),
        }
    }

    fn p2l(&mut self, base: &Base) -> Result<(), Error> {
        let Some(w) = &self.placed else { return Ok(()) };
        self.of_sources(base, w, SINGULAR, (&base.lists.p2l, &w.p2l), &w.locals)
    }

    fn l2l(&mut self, _: &Base, level: usize) -> Result<(), Error> {
        let Some(w) = self.placed.as_ref().filter(|w| level > 0 && w.l2l.any(level)) else { return Ok(()) };
        let from = (&w.locals, row(self.order), (&w.l2l.from).into());
        let to = (&w.locals, row(self.order), (&w.l2l.to).into());
        // SAFETY: the edges exist, and a box has one parent, on the level above.
        unsafe { self.products.multiply(&self.translations.l2l, from, to, w.l2l.groups(level), 1.0, true) }
    }

    fn l2p(&mut self, base: &Base) -> Result<(), Error> {
        let Some(w) = &self.placed else { return Ok(()) };
        self.at_targets(base, w, REGULAR, (&base.lists.l2p, &w.l2p), &w.locals)
    }

    fn m2p(&mut self, base: &Base) -> Result<(), Error> {
        let Some(w) = &self.placed else { return Ok(()) };
        self.at_targets(base, w, SINGULAR, (&base.lists.m2p, &w.m2p), &w.multipoles)
    }

    fn leaves_room(&self) -> bool {
        true
    }

    fn bytes(&self) -> u64 {
        let matrices = self.sources.iter().chain(&self.targets).map(|side| side.matrix.bytes());
        let placed = |w: &Placed<T>| {
            let items: u64 = [&w.p2m, &w.parents, &w.p2l, &w.l2p, &w.m2p].iter().map(|i| i.boxes.bytes()).sum();
            let edges = w.m2m.bytes() + w.l2l.bytes() + w.m2l.as_ref().map_or(0, Across::bytes);
            items + edges + w.multipoles.bytes() + w.locals.bytes()
        };
        matrices.sum::<u64>() + self.translations.bytes() + self.placed.as_ref().map_or(0, placed)
    }
}
