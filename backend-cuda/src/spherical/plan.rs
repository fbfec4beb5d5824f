//! The stages of spherical harmonics on the device: `kernels/{p2m_harmonics,rcr,multiply,m2l,l2p_harmonics}.cu`.

use super::operators::{DeviceSparse, Matrices, row, steps};
use super::polynomials::{Polynomials, Read};
use super::rotations::Rotations;
use super::series::DeviceSeries;
use super::{SphericalSettings, Translation};
use crate::arrange::{Arranged, Items, Upward};
use crate::base::Base;
use crate::device::{Arg, Buffer, Device, Functions, blocks};
use crate::domains::{ByEnd, DeviceM2lEnds, M2lEnds};
use crate::equivalent::DeviceScalar;
use crate::far::{FarField, Made};
use crate::levels::Units;
use crate::lists::DeviceEdges;
use crate::pinned::joined;
use crate::products::{Across, Products};
use crate::programs::{self, Groups};
use crate::ranks::{Ranks, Row};
use crate::tasks::Tasks;
use fmm_kernels::Laplace;
use fmm_kernels::spherical::coaxial::Step;
use fmm_kernels::spherical::layout::{derivatives_of, layout};
use fmm_kernels::spherical::sparse::{self, Harmonics};
use fmm_kernels::spherical::{MAX_ORDER, MIN_ORDER};
use fmm_traits::{Error, Kernels, Member};

/// Threads of `p2m_harmonics.cu`.
const WARP_THREADS: u32 = 32;

/// The far field by spherical harmonics, with rows in `T`.
#[derive(Debug)]
pub(crate) struct Spherical<T: DeviceScalar> {
    order: usize,
    /// Degree in length of each strength.
    strengths: Vec<i32>,
    /// Degree in length of each value.
    values: Vec<i32>,
    p2m: Functions,
    l2p: Functions,
    /// Loaded for the first points that have M2P edges.
    m2p: Option<M2p<T>>,
    products: Products,
    /// Coefficients of the recursions.
    steps: Buffer<T>,
    /// Maps from sums over sources to rows, for regular and for singular harmonics.
    sources: [SourceSums<T>; 2],
    /// Map from rows to coefficients of values.
    series: DeviceSeries<T>,
    translations: Translations<T>,
    /// Where M2L may end.
    ends: M2lEnds,
    device_ends: DeviceM2lEnds,
    /// `None` before the first points.
    placed: Option<Placed<T>>,
}

/// The programs of M2P.
#[derive(Debug)]
enum M2p<T> {
    Series(Functions),
    Polynomials(Box<Polynomials<T>>),
}

/// The operators of M2M, M2L and L2L.
#[derive(Debug)]
enum Translations<T> {
    Dense(Matrices<T>),
    Rcr(Rotations<T>),
}

/// Sums of one kind of harmonics over sources: their order, and the matrix that turns the sums into a row.
#[derive(Debug)]
struct SourceSums<T> {
    order: usize,
    matrix: DeviceSparse<T>,
}

/// The part of the far field that depends on the points.
#[derive(Debug)]
struct Placed<T> {
    /// Rows of `level.cuh` for P2M and P2L.
    given: Buffer<f64>,
    /// Rows of `level.cuh` for L2P and M2P.
    wanted: Buffer<f64>,
    m2m: Upward,
    /// M2M edges that follow the exchange with other ranks.
    after: Option<Upward>,
    m2l: Option<Across<T>>,
    /// Edges from domains to their children.
    within: Option<Arranged>,
    l2l: Arranged,
    /// Boxes that receive edges of each kind.
    p2m: Items,
    p2l: Items,
    /// The polynomials that M2P reads.
    read: Option<Read>,
    /// One row per box.
    multipoles: Buffer<T>,
    /// One row per box, then one per domain that receives M2L. During M2M the rows of boxes hold the translated
    /// multipoles of children.
    locals: Buffer<T>,
}

/// Index of regular harmonics (P2M).
const REGULAR: usize = 0;
/// Index of singular harmonics (P2L).
const SINGULAR: usize = 1;

impl<T: DeviceScalar> Spherical<T> {
    /// The far field of order `p` for the `kernels` of a family, without points.
    ///
    /// # Errors
    /// [`Error::Order`], [`Error::Unsupported`] for a family without harmonics, and errors of the device.
    pub fn new(device: &Device, kernels: &Kernels, p: usize, settings: SphericalSettings) -> Result<Self, Error> {
        if !(MIN_ORDER..=MAX_ORDER).contains(&p) {
            return Err(Error::Order { order: p, min: MIN_ORDER, max: MAX_ORDER });
        }
        let SphericalSettings { truncation, translation, parents } = settings;
        let (layout, near, far) = (layout(kernels)?, &kernels.near, &kernels.far);
        let kinds = [Harmonics::Regular, Harmonics::Singular];
        let source = |kind: Harmonics| -> Result<SourceSums<T>, Error> {
            let matrix = sparse::sources(layout, kind, p, near.strengths);
            Ok(SourceSums { order: sparse::source_order(layout, kind, p), matrix: DeviceSparse::new(device, &matrix)? })
        };
        let sources = [source(kinds[REGULAR])?, source(kinds[SINGULAR])?];
        let most = sources[REGULAR].order.max(sources[SINGULAR].order);
        let translation = translation.unwrap_or(Translation::fastest::<T>(p));
        let ends = M2lEnds::new(parents, translation == Translation::Domains);
        let programs = [
            programs::p2m_harmonics_program::<T>(near.strengths, most),
            programs::l2p_harmonics_program::<T>(far.values, p, false),
        ];
        // Programs are loaded beside the operators.
        let (translations, programs, products) = std::thread::scope(|scope| {
            let programs = scope.spawn(|| device.load_together(programs));
            let products = scope.spawn(|| Products::new::<T>(device));
            let translations = match translation {
                Translation::Dense => Matrices::new(device, p, truncation).map(Translations::Dense),
                Translation::Rcr | Translation::Domains => {
                    Rotations::new(device, p, truncation, &ends).map(Translations::Rcr)
                }
            };
            (translations, joined(programs), joined(products))
        });
        let [p2m, l2p] = programs?;
        Ok(Spherical {
            order: p,
            strengths: near.strength_degrees.clone(),
            values: far.value_degrees.clone(),
            p2m,
            l2p,
            m2p: None,
            products: products?,
            steps: steps(device, most)?,
            sources,
            series: DeviceSeries::new(device, derivatives_of(far.values), p)?,
            translations: translations?,
            device_ends: DeviceM2lEnds::new(device, &ends)?,
            ends,
            placed: None,
        })
    }

    /// The first five arguments of the kernels between points and harmonics: boxes, units, and the edges of `items`.
    fn meeting(base: &Base, units: &Buffer<f64>, (edges, items): (&DeviceEdges, Arg)) -> [Arg; 5] {
        [(&base.boxes).into(), units.into(), items, (&edges.starts).into(), (&edges.sources).into()]
    }

    /// Enqueues P2M, which overwrites rows of `to`, or P2L, which adds to them.
    fn of_sources(
        &self,
        base: &Base,
        w: &Placed<T>,
        kind: usize,
        (edges, items): (&DeviceEdges, &Items),
        to: &Buffer<T>,
    ) -> Result<(), Error> {
        let SourceSums { order, matrix } = &self.sources[kind];
        let common = Self::meeting(base, &w.given, (edges, (&items.boxes).into()));
        let rest = [
            (&self.steps).into(),
            (*order as u32).into(),
            (kind as u32).into(),
            (&matrix.starts).into(),
            (&matrix.columns).into(),
            (&matrix.entries).into(),
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
        unsafe { base.device().launch(&self.p2m, "to_harmonics", (blocks(items.len(), 1)?, 1), WARP_THREADS, &args) }
    }

    /// Enqueues L2P or M2P.
    fn at_targets(
        &self,
        base: &Base,
        w: &Placed<T>,
        functions: &Functions,
        (edges, tasks): (&DeviceEdges, &Tasks),
        from: &Buffer<T>,
    ) -> Result<(), Error> {
        let rest = [
            (&w.wanted).into(),
            (&edges.sources).into(),
            (&self.series.betas).into(),
            (&self.series.columns).into(),
            (&self.series.factors).into(),
            (row(self.order) as u32).into(),
            from.into(),
            (&base.tree.targets.xyz).into(),
            (base.tree.targets.len() as u64).into(),
        ];
        // SAFETY: arguments as in l2p_harmonics.cu; `from` has a row for each box.
        unsafe { tasks.sum(base, edges, (functions, "from_harmonics"), false, &rest) }
    }

    /// Enqueues M2M along `edges`, which `up` arranges, into the boxes of a level.
    fn upward(&self, w: &Placed<T>, (up, edges): (&Upward, &DeviceEdges), level: usize) -> Result<(), Error> {
        if up.parents.of(level).1 == 0 {
            return Ok(());
        }
        let length = row(self.order);
        // First each child is translated into its own row of the locals. Then the rows of a family are added to the row
        // of the parent.
        // SAFETY: the edges exist, and a box has one parent; both arrays have a row for each box.
        unsafe {
            match &self.translations {
                Translations::Dense(matrices) => {
                    let from = (&w.multipoles, length, (&up.edges.from).into());
                    let to = (&w.locals, length, (&up.edges.from).into());
                    self.products.multiply(&matrices.m2m, from, to, up.edges.groups(level + 1), 1.0, false)?;
                }
                Translations::Rcr(rotations) => {
                    rotations.along(Step::Up, &up.edges, level + 1, &w.multipoles, &w.locals)?;
                }
            }
            self.products.add_rows(&up.parents, level, edges, length, &w.locals, &w.multipoles)
        }
    }
}

impl<T: DeviceScalar> FarField for Spherical<T> {
    fn groups(&self) -> [Groups; 2] {
        let values = self.values.len();
        let m2p = match &self.m2p {
            Some(M2p::Polynomials(_)) => Groups::polynomials::<T>(values),
            _ => Groups::harmonics::<T>(values, true),
        };
        [Groups::harmonics::<T>(values, false), m2p]
    }

    fn make(&mut self, base: &Base) -> Result<Made, Error> {
        let (lists, device, sides) = (&base.lists, base.device(), base.sides());
        let arranger = base.arranger()?;
        let mut within = (0, None);
        let m2l = if lists.m2l.is_empty() {
            None
        } else {
            // All levels share one set of operators.
            let ByEnd { table, more, down } = arranger.by_end(&lists.m2l, &self.device_ends)?;
            within = (more, down);
            Some(match &mut self.translations {
                Translations::Dense(matrices) => {
                    matrices.across(device, &self.products, &self.ends)?;
                    self.products.far(table, row(self.order))?
                }
                Translations::Rcr(rotations) => {
                    let [edges, resident] = rotations.tile();
                    let blocks = table.blocks(edges);
                    self.products.cut(table, row(self.order), [blocks, resident])?
                }
            })
        };
        if self.m2p.is_none() && !lists.m2p.is_empty() {
            let (values, order) = (self.values.len(), self.order);
            self.m2p = Some(match Polynomials::<T>::serve(order, values) {
                true => M2p::Polynomials(Box::new(Polynomials::new(device, order, values)?)),
                false => M2p::Series(device.load(&programs::l2p_harmonics_program::<T>(values, order, true))?),
            });
        }
        let read = match &self.m2p {
            Some(M2p::Polynomials(polynomials)) if !lists.m2p.is_empty() => {
                Some(polynomials.read(&arranger, &lists.m2p)?)
            }
            _ => None,
        };
        let numbers = if base.far() { base.tree.len() * row(self.order) } else { 0 };
        let units = Units { params: Vec::new(), kernel: Member::of::<Laplace>() };
        let [m2m, l2l] = arranger.edges(&lists.m2m, &lists.l2l, 8 * sides.len())?;
        let [p2m, parents, p2l] = arranger.items([&lists.p2m, &lists.m2m, &lists.p2l].map(|edges| [edges; 3]))?;
        Ok(Box::new(Placed::<T> {
            given: device.upload(&units.table(&sides, &[&self.strengths]), "levels")?,
            wanted: device.upload(&units.table(&sides, &[&self.values]), "levels")?,
            m2m: Upward { edges: m2m, parents },
            after: base.ranks().map(|ranks| arranger.upward(&ranks.after, 8 * sides.len())).transpose()?,
            m2l,
            within: within.1,
            l2l,
            p2m,
            p2l,
            read,
            multipoles: device.zeros(numbers, "multipoles")?,
            locals: device.zeros(numbers + within.0 * row(self.order), "locals")?,
        }))
    }

    fn take(&mut self, made: Made) {
        if let Ok(placed) = made.downcast::<Placed<T>>() {
            self.placed = Some(*placed);
        }
    }

    fn p2m(&mut self, base: &Base) -> Result<(), Error> {
        let Some(w) = &mut self.placed else { return Ok(()) };
        if base.ranks().is_some_and(Ranks::adds) {
            base.device().clear(&mut w.multipoles)?;
        }
        let Some(w) = &self.placed else { return Ok(()) };
        self.of_sources(base, w, REGULAR, (&base.lists.p2m, &w.p2m), &w.multipoles)
    }

    fn m2m(&mut self, base: &Base, level: usize) -> Result<(), Error> {
        let Some(w) = &self.placed else { return Ok(()) };
        self.upward(w, (&w.m2m, &base.lists.m2m), level)
    }

    fn exchange(&mut self, base: &Base, ranks: &Ranks) -> Result<(), Error> {
        let Some(w) = self.placed.as_ref().filter(|_| base.far()) else { return Ok(()) };
        ranks.complete(Row::Multipoles, &w.multipoles, row(self.order))?;
        let Some(after) = &w.after else { return Ok(()) };
        (0..base.sides().len()).rev().try_for_each(|level| self.upward(w, (after, &ranks.after), level))
    }

    fn m2l(&mut self, base: &Base) -> Result<(), Error> {
        let Some(w) = &mut self.placed else { return Ok(()) };
        base.device().clear(&mut w.locals)?;
        let (Some(far), length) = (&w.m2l, row(self.order)) else { return Ok(()) };
        // SAFETY: both arrays have a row of even length for each box, and the locals have one for each domain.
        unsafe {
            match &self.translations {
                Translations::Dense(Matrices { m2l: Some(matrices), .. }) => {
                    self.products.across(matrices, [length; 2], far, 0, &w.multipoles, &w.locals)
                }
                Translations::Dense(_) => Ok(()),
                Translations::Rcr(rotations) => {
                    rotations.across(far, &w.multipoles, &w.locals)?;
                    self.products.join(length, far, 0, &w.locals)?;
                    w.within.as_ref().map_or(Ok(()), |edges| rotations.within(edges, &w.locals))
                }
            }
        }
    }

    fn p2l(&mut self, base: &Base) -> Result<(), Error> {
        let Some(w) = &self.placed else { return Ok(()) };
        self.of_sources(base, w, SINGULAR, (&base.lists.p2l, &w.p2l), &w.locals)
    }

    fn l2l(&mut self, _: &Base, level: usize) -> Result<(), Error> {
        let Some(w) = self.placed.as_ref().filter(|w| level > 0 && w.l2l.any(level)) else { return Ok(()) };
        // SAFETY: the edges exist, and a box has one parent, on the level above.
        unsafe {
            match &self.translations {
                Translations::Dense(matrices) => {
                    let from = (&w.locals, row(self.order), (&w.l2l.from).into());
                    let to = (&w.locals, row(self.order), (&w.l2l.to).into());
                    self.products.multiply(&matrices.l2l, from, to, w.l2l.groups(level), 1.0, true)
                }
                Translations::Rcr(rotations) => rotations.along(Step::Down, &w.l2l, level, &w.locals, &w.locals),
            }
        }
    }

    fn l2p(&mut self, base: &Base) -> Result<(), Error> {
        let Some(w) = &self.placed else { return Ok(()) };
        self.at_targets(base, w, &self.l2p, (&base.lists.l2p, &base.l2p), &w.locals)
    }

    fn m2p(&mut self, base: &Base) -> Result<(), Error> {
        let (Some(w), Some(m2p)) = (&self.placed, &self.m2p) else { return Ok(()) };
        match (m2p, &w.read) {
            (M2p::Series(m2p), _) => self.at_targets(base, w, m2p, (&base.lists.m2p, &base.m2p), &w.multipoles),
            (M2p::Polynomials(m2p), Some(read)) => {
                // SAFETY: the polynomials were made for these edges; there is a row for each box.
                unsafe { m2p.enqueue(base, read, &w.wanted, &base.lists.m2p, &w.multipoles) }
            }
            (M2p::Polynomials(_), None) => Ok(()),
        }
    }

    fn leaves_room(&self) -> bool {
        true
    }

    fn bytes(&self) -> u64 {
        let matrices = self.sources.iter().map(|side| side.matrix.bytes());
        let translations = match &self.translations {
            Translations::Dense(matrices) => matrices.bytes(),
            Translations::Rcr(rotations) => rotations.bytes(),
        };
        let placed = |w: &Placed<T>| {
            let items: u64 = [&w.p2m, &w.p2l].iter().map(|i| i.boxes.bytes()).sum();
            let upward = w.m2m.bytes() + w.after.as_ref().map_or(0, Upward::bytes);
            let within = w.within.as_ref().map_or(0, Arranged::bytes);
            let edges = upward + within + w.l2l.bytes() + w.m2l.as_ref().map_or(0, Across::bytes);
            items + w.read.as_ref().map_or(0, Read::bytes) + edges + w.multipoles.bytes() + w.locals.bytes()
        };
        matrices.sum::<u64>()
            + self.device_ends.bytes()
            + self.series.bytes()
            + translations
            + self.placed.as_ref().map_or(0, placed)
    }
}
