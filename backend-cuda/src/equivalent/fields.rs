//! The far fields of a sum: one, or one for each node of the attributes of sources ([`fmm_traits::attributes`]).

use super::DeviceScalar;
use super::plan::{Edges, Equivalent, Placed, Programs, Shape, VList};
use super::recipe::Recipe;
use crate::base::Base;
use crate::device::{Arg, Buffer, Device, Functions, blocks};
use crate::far::{FarField, Made};
use crate::pinned::joined;
use crate::programs::{self, Groups};
use crate::ranks::Ranks;
use fmm_kernels::equivalent::Lattice;
use fmm_traits::{Error, Kernels};
use rayon::prelude::*;
use std::path::PathBuf;

/// Threads of a block of `nodes.cu`.
const THREADS: u32 = 256;

/// Sources as one far field of several has them: strengths times their [weight](fmm_traits::weight) in this far field,
/// and the attributes of its node.
#[derive(Debug)]
pub(super) struct Part {
    functions: Functions,
    /// Rows of `nodes.cu`, one for each factor.
    factors: Buffer<f64>,
    count: usize,
    /// Numbers of a source, and how many of them are strengths; the attributes come behind.
    widths: [usize; 2],
}

impl Part {
    /// The part of sources in far field `k` of `kernels`; `None` if there is one far field.
    pub fn new(device: &Device, kernels: &Kernels, k: usize) -> Result<Option<Self>, Error> {
        if kernels.nodes.count() == 1 {
            return Ok(None);
        }
        let factors = kernels.nodes.factors(k);
        let row = |factor: &fmm_traits::Factor| {
            let head =
                [factor.attribute as f64, factor.value, factor.power.into(), factor.zeros.len() as f64, factor.scale];
            head.into_iter().chain(factor.zeros.iter().copied()).collect::<Vec<f64>>()
        };
        let rows: Vec<f64> = factors.iter().flat_map(row).collect();
        Ok(Some(Part {
            functions: device.fixed("nodes", programs::nodes)?,
            factors: device.upload(&rows, "nodes")?,
            count: factors.len(),
            widths: [kernels.near.strengths, kernels.near.linear()],
        }))
    }

    /// Room for the numbers of `n` sources.
    pub fn room(&self, device: &Device, n: usize) -> Result<Buffer<f64>, Error> {
        device.alloc(n * self.widths[0], "strengths")
    }

    /// Enqueues the kernel that writes the sources of `base`, as this far field has them, to `to`.
    pub fn take(&self, base: &Base, to: &Buffer<f64>) -> Result<(), Error> {
        let (n, [width, linear]) = (base.tree.sources.len(), self.widths.map(|width| width as u32));
        let args = [
            (&base.strengths).into(),
            (n as u64).into(),
            width.into(),
            linear.into(),
            (&self.factors).into(),
            (self.count as u32).into(),
            ((self.factors.len() / self.count) as u32).into(),
            Arg::from(to),
        ];
        let grid = (blocks(n, THREADS as usize)?, 1);
        // SAFETY: arguments as in nodes.cu; both arrays have a row for each source. Rows of factors are equally long,
        // because all attributes of a grid have the same number of nodes.
        unsafe { base.device().launch(&self.functions, "take_part", grid, THREADS, &args) }
    }
}

/// Bytes of solves that the host may hold while operators are made.
const MAX_HOST_BYTES: usize = 2 << 30;

/// The far fields of a plan, which add to the same values. Each stage runs for one far field after the other, so they
/// share edges and the spectra of M2L.
#[derive(Debug)]
pub(crate) struct Fields<T: DeviceScalar> {
    fields: Vec<Equivalent<T>>,
    /// For all operators made so far: the parameters on the unit box in all far fields.
    keys: Vec<Vec<f64>>,
    /// `None` before the first points.
    edges: Option<Edges<T>>,
}

impl<T: DeviceScalar> Fields<T> {
    /// The far fields on a `lattice` for the `kernels` of a family, without points. `cache` is the folder that keeps
    /// operators between runs. `ahead` is a side of boxes whose operators are made beside the loading of programs.
    ///
    /// # Errors
    /// [`Error::Order`], and errors of the device.
    pub fn new(
        device: &Device,
        kernels: &Kernels,
        lattice: Lattice,
        cache: Option<PathBuf>,
        ahead: Option<f64>,
    ) -> Result<Self, Error> {
        lattice.validate()?;
        let recipe = |k| Recipe::new::<T>(kernels, k, lattice, cache.clone());
        let recipes: Vec<Recipe> = (0..kernels.nodes.count()).map(recipe).collect();
        let (programs, made) = std::thread::scope(|scope| {
            let programs = scope.spawn(|| Programs::load::<T>(device, kernels, lattice));
            let of_side = |side: f64| recipes.par_iter().map(|recipe| recipe.operators::<T>(side)).collect();
            let made: Option<Result<Vec<_>, Error>> = ahead.map(of_side);
            (joined(programs), made.transpose())
        });
        let (programs, _made) = (programs?, made?);
        let field = |(k, recipe)| Equivalent::new(device, recipe, Part::new(device, kernels, k)?, programs.clone());
        let fields = recipes.into_iter().enumerate().map(field).collect::<Result<_, _>>()?;
        let mut fields = Fields { fields, keys: Vec::new(), edges: None };
        if let Some(side) = ahead {
            fields.operators(device, &[side])?;
        }
        Ok(fields)
    }

    /// The parameters on the unit box in all far fields.
    fn key(&self, side: f64) -> Vec<f64> {
        self.fields.iter().flat_map(|field| field.recipe.parameters(side)).collect()
    }

    /// Makes the operators of boxes of some sides in all far fields, unless they are there, and returns their numbers. The
    /// host makes its part of several operators at the same time.
    fn operators(&mut self, device: &Device, sides: &[f64]) -> Result<Vec<u32>, Error> {
        let same = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
        let (mut missing, mut sets, known) = (Vec::new(), Vec::new(), self.keys.len());
        for &side in sides {
            let key = self.key(side);
            sets.push(match self.keys.iter().position(|other| same(other, &key)) {
                Some(set) => set as u32,
                None => {
                    self.keys.push(key);
                    missing.extend((0..self.fields.len()).map(|k| (k, side)));
                    self.keys.len() as u32 - 1
                }
            });
        }
        let done = self.add(device, &missing);
        if done.is_err() {
            self.keys.truncate(known);
            self.fields.iter_mut().for_each(|field| field.keep(known));
        }
        done.map(|()| sets)
    }

    /// Adds the operators of far fields and sides.
    fn add(&mut self, device: &Device, missing: &[(usize, f64)]) -> Result<(), Error> {
        let Shape { density, check, .. } = self.fields[0].shape;
        let together = (MAX_HOST_BYTES / (4 * density * check * size_of::<T>())).max(1);
        for some in missing.chunks(together) {
            let recipes: Vec<&Recipe> = self.fields.iter().map(|field| &field.recipe).collect();
            let prepared = some.par_iter().map(|&(k, side)| Ok((k, recipes[k].prepare::<T>(side)?)));
            for (k, prepared) in prepared.collect::<Result<Vec<_>, Error>>()? {
                self.fields[k].add(device, &prepared)?;
            }
        }
        Ok(())
    }

    /// For each level the number of its operators. A level without multipoles and locals gets those of another level,
    /// which nobody reads.
    fn sets(&mut self, base: &Base, edges: &Edges<T>) -> Result<Vec<u32>, Error> {
        let sides = base.sides();
        let mut used: Vec<usize> = (0..sides.len()).filter(|&level| base.far() && edges.any(level)).collect();
        if used.is_empty() && base.far() {
            // All multipoles come from other ranks, and go to targets.
            used.push(sides.len() - 1);
        }
        let made = self.operators(base.device(), &used.iter().map(|&level| sides[level]).collect::<Vec<_>>())?;
        let nearest = |level: usize| used.partition_point(|&u| u < level).min(used.len().saturating_sub(1));
        Ok((0..sides.len()).map(|level| made.get(nearest(level)).copied().unwrap_or(0)).collect())
    }
}

impl<T: DeviceScalar> FarField for Fields<T> {
    fn groups(&self) -> [Groups; 2] {
        [self.fields[0].recipe.groups; 2]
    }

    fn make(&mut self, base: &Base) -> Result<Made, Error> {
        let (device, lattice) = (base.device(), self.fields[0].recipe.lattice);
        let mut edges = Edges::new(base, lattice)?;
        let sets = self.sets(base, &edges)?;
        let first = &self.fields[0];
        edges.arrange_m2l(
            base,
            (&first.programs, &first.shape, lattice),
            &sets,
            [self.keys.len(), self.fields.len()],
        )?;
        let fourier = match edges.m2l {
            VList::None => None,
            VList::Fourier(_) => Some(true),
            VList::Dense(_) => Some(false),
        };
        if let Some(fourier) = fourier {
            for field in &mut self.fields {
                sets[1..].iter().try_for_each(|&set| field.add_m2l(device, set as usize, fourier))?;
            }
        }
        let placed = self.fields.iter().map(|field| field.room(base, &edges, &sets)).collect::<Result<Vec<_>, _>>()?;
        Ok(Box::new((edges, placed)))
    }
    fn take(&mut self, made: Made) {
        if let Ok(made) = made.downcast::<(Edges<T>, Vec<Placed<T>>)>() {
            let (edges, placed) = *made;
            self.fields.iter_mut().zip(placed).for_each(|(field, placed)| field.place(placed));
            self.edges = Some(edges);
        }
    }
    fn p2m(&mut self, base: &Base) -> Result<(), Error> {
        let Some(edges) = &self.edges else { return Ok(()) };
        self.fields.iter_mut().try_for_each(|field| field.p2m(base, edges))
    }
    fn m2m(&mut self, base: &Base, level: usize) -> Result<(), Error> {
        let Some(edges) = &self.edges else { return Ok(()) };
        self.fields.iter().try_for_each(|field| field.m2m(base, edges, level))
    }
    fn exchange(&mut self, base: &Base, ranks: &Ranks) -> Result<(), Error> {
        let Some(edges) = &self.edges else { return Ok(()) };
        self.fields.iter().try_for_each(|field| field.exchange(base, edges, ranks))
    }
    fn m2l(&mut self, base: &Base) -> Result<(), Error> {
        let Some(edges) = &self.edges else { return Ok(()) };
        self.fields.iter_mut().try_for_each(|field| field.m2l(base, edges))
    }
    fn p2l(&mut self, base: &Base) -> Result<(), Error> {
        self.fields.iter().try_for_each(|field| field.p2l(base))
    }
    fn l2l(&mut self, base: &Base, level: usize) -> Result<(), Error> {
        let Some(edges) = &self.edges else { return Ok(()) };
        self.fields.iter().try_for_each(|field| field.l2l(base, edges, level))
    }
    fn l2p(&mut self, base: &Base) -> Result<(), Error> {
        self.fields.iter().try_for_each(|field| field.l2p(base))
    }
    fn m2p(&mut self, base: &Base) -> Result<(), Error> {
        self.fields.iter().try_for_each(|field| field.m2p(base))
    }
    fn hold(&mut self, most: usize) {
        if let Some(VList::Fourier(families)) = self.edges.as_mut().map(|edges| &mut edges.m2l) {
            families.hold(most);
        }
    }
    fn leaves_room(&self) -> bool {
        self.fields.iter().all(Equivalent::leaves_room)
    }
    fn bytes(&self) -> u64 {
        self.edges.as_ref().map_or(0, Edges::bytes) + self.fields.iter().map(Equivalent::held).sum::<u64>()
    }
}
