//! M2L in spherical harmonics, a box a lane.
//!
//! Boxes of one level in one octant of their parents have the same 189 offsets in their V lists. Sixteen of
//! them are the lanes of a few vectors: for each offset, the multipoles of the boxes that lie there are
//! gathered, moved by one [`Course`] (rotation, coaxial shift, rotation back, the same tables for all lanes) and added
//! to the locals, which stay in cache until all offsets are done. A lane without a source at some offset carries
//! zeros. Works for any M2L edges of an octree, those of the 119 stencil included.

use crate::lanes::{Isa, Vectorized, dispatch};
use fmm_kernels::spherical::Truncation;
use fmm_kernels::spherical::coaxial::Step;
use fmm_kernels::spherical::rcr::{Course, Rcr};
use fmm_kernels::spherical::shift::Shift;
use fmm_traits::tree::{Edges, NONE, Tree};
use fmm_traits::{Cube, Real, Simd, SimdLane};
use rayon::prelude::*;
use std::collections::{BTreeMap, HashMap};

/// Target boxes that are done together: the lanes of the widest vector, f32 under AVX-512.
const GROUP: usize = 16;

/// Target boxes of one level and octant.
#[derive(Debug)]
struct Group {
    targets: Vec<u32>,
    /// Course, and the source box of each target, or [`NONE`].
    moves: Vec<(u32, [u32; GROUP])>,
}

/// All M2L edges of a tree, arranged.
#[derive(Debug)]
pub struct SphericalM2l<T> {
    order: usize,
    isa: Isa,
    rcr: Rcr<T>,
    courses: Vec<Course<T>>,
    groups: Vec<Group>,
}

impl<T: Real> SphericalM2l<T> {
    /// Arranges `edges` of `tree` for expansions of `order`.
    pub fn new(tree: &Tree, edges: &Edges, order: usize, truncation: Truncation, isa: Isa) -> Self {
        let rcr = Rcr::new(order);
        let (mut courses, mut groups) = (Vec::new(), Vec::new());
        let mut known: HashMap<([i64; 3], i32), u32> = HashMap::new();
        for level in 0..tree.levels() {
            let cube = |b: usize, l: usize| Cube { center: tree.center(b, l), side: tree.side_at(l) };
            let mut course = |target: usize, source: u32| {
                let source_level = tree.level_of(source as usize);
                let (t, s) = (cube(target, level), cube(source as usize, source_level));
                let half = 0.5 * t.side.min(s.side);
                // Exact: differences of centres are whole halves of the smaller side.
                let offset = std::array::from_fn(|a| ((t.center[a] - s.center[a]) / half) as i64);
                *known.entry((offset, source_level as i32 - level as i32)).or_insert_with(|| {
                    courses.push(rcr.course(Step::Across, &Shift::across(t, s, order, truncation)));
                    courses.len() as u32 - 1
                })
            };
            for octant in 0..8 {
                let receives = |b: &usize| tree.octant[*b] == octant && !edges.row(*b).is_empty();
                let boxes: Vec<usize> = tree.level(level).filter(receives).collect();
                for targets in boxes.chunks(GROUP) {
                    let mut moves: BTreeMap<u32, [u32; GROUP]> = BTreeMap::new();
                    for (lane, &target) in targets.iter().enumerate() {
                        for &source in edges.row(target) {
                            moves.entry(course(target, source)).or_insert([NONE; GROUP])[lane] = source;
                        }
                    }
                    let targets = targets.iter().map(|&t| t as u32).collect();
                    groups.push(Group { targets, moves: moves.into_iter().collect() });
                }
            }
        }
        SphericalM2l { order, isa, rcr, courses, groups }
    }

    /// Adds to the rows `locals` what `multipoles` send them; order² numbers a box. Runs on the current rayon pool; the
    /// number of threads changes no bit.
    pub fn apply(&self, multipoles: &[T], locals: &mut [T]) {
        let len = self.order * self.order;
        let add = |group: &Group| dispatch(self.isa, Work { m2l: self, group, multipoles });
        let rows: Vec<Vec<T>> = self.groups.par_iter().map(add).collect();
        for (group, rows) in self.groups.iter().zip(rows) {
            for (&target, row) in group.targets.iter().zip(rows.chunks_exact(len)) {
                let to = &mut locals[target as usize * len..][..len];
                to.iter_mut().zip(row).for_each(|(to, &x)| *to += x);
            }
        }
    }
}

/// The locals of one group, row by row.
struct Work<'a, T> {
    m2l: &'a SphericalM2l<T>,
    group: &'a Group,
    multipoles: &'a [T],
}

impl<T: Real> Vectorized for Work<'_, T> {
    type Output = Vec<T>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Vec<T> {
        let width = <T::Vector<S> as SimdLane>::WIDTH;
        let (m2l, len) = (self.m2l, self.m2l.order * self.m2l.order);
        let zero = T::Vector::<S>::broadcast(T::of(0.0));
        let (mut from, mut local, mut work) = (vec![zero; len], vec![zero; len], vec![zero; 2 * len]);
        let none = vec![T::of(0.0); len];
        let mut rows = vec![T::of(0.0); self.group.targets.len() * len];
        for first in (0..self.group.targets.len()).step_by(width) {
            local.fill(zero);
            for (course, sources) in &self.group.moves {
                let sources = &sources[first..first + width];
                if sources.iter().all(|&s| s == NONE) {
                    continue;
                }
                let row = |s: u32| if s == NONE { &none[..] } else { &self.multipoles[s as usize * len..][..len] };
                let lanes: [&[T]; GROUP] = std::array::from_fn(|i| row(sources.get(i).copied().unwrap_or(NONE)));
                let course = &m2l.courses[*course as usize];
                let read = course.orders()[0];
                let mut buffer = [T::of(0.0); GROUP];
                for (k, to) in from[..read * read].iter_mut().enumerate() {
                    for (to, lane) in buffer.iter_mut().zip(&lanes).take(width) {
                        *to = lane[k];
                    }
                    // SAFETY: the buffer holds GROUP scalars, no vector has more.
                    *to = unsafe { SimdLane::load(buffer.as_ptr()) };
                }
                m2l.rcr.add(course, &from, &mut local, &mut work);
            }
            let mut buffer = [T::of(0.0); GROUP];
            for (k, x) in local.iter().enumerate() {
                // SAFETY: as above.
                unsafe { x.store(buffer.as_mut_ptr()) };
                for (row, &x) in rows[first * len..].chunks_exact_mut(len).zip(&buffer[..width]) {
                    row[k] = x;
                }
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fmm_kernels::Laplace;
    use fmm_kernels::spherical::{SphericalExpansion, SphericalOptions};
    use fmm_traits::Expansion;
    use fmm_traits::testkit::clouds::{CloudKind, Generator};
    use fmm_traits::testkit::expansion::difference;
    use fmm_tree::{BuildOptions, ListOptions, build, stencil119};

    fn agrees<T: Real>(tolerance: f64) {
        let p = 7;
        let x =
            SphericalExpansion::<Laplace, T, Laplace, Laplace>::new(&Laplace, p, SphericalOptions::default()).unwrap();
        for kind in [CloudKind::Uniform, CloudKind::Ellipsoid, CloudKind::Line] {
            let options = BuildOptions { ncrit: Some(9), ..Default::default() };
            let tree = build(&kind.points(3000, 3), None, &options).unwrap();
            let edges = stencil119(&tree, &ListOptions::default()).unwrap().m2l;
            let mut g = Generator::new(2);
            let rows = tree.len() * p * p;
            let multipoles: Vec<T> = (0..rows).map(|_| T::of(g.normal())).collect();
            let mut expected = vec![T::of(0.5); rows];
            let cube = |b: u32| {
                let l = tree.level_of(b as usize);
                Cube { center: tree.center(b as usize, l), side: tree.side_at(l) }
            };
            for (t, s) in edges.iter() {
                let (t, s, (to, from)) = (t as usize * p * p, s as usize * p * p, (cube(t), cube(s)));
                x.m2l(to, from, &multipoles[s..s + p * p], &mut expected[t..t + p * p]);
            }
            for isa in Isa::available() {
                let m2l = SphericalM2l::new(&tree, &edges, p, Truncation::Variable, isa);
                let mut found = vec![T::of(0.5); rows];
                m2l.apply(&multipoles, &mut found);
                let d = difference(&found, &expected, 1);
                assert!(d < tolerance, "{} {} {}: {d:e}", kind.name(), isa.name(), T::NAME);
            }
        }
    }

    #[test]
    fn lanes_agree_with_one_edge_at_a_time() {
        agrees::<f64>(1e-14);
        agrees::<f32>(1e-5);
    }
}
