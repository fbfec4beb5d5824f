//! M2M, M2L and L2L by rotate – coaxial – rotate back: tables and launches of `kernels/rcr.cu`.
//!
//! Where an order has unrolled code ([`Unrolled`]), M2L uses that code.
//!
//! A *job* is one tile of one matrix: [`TILE_ROWS`] rows, applied to all edges of a block. A *course* is one
//! translation (an operator of M2L, an octant of M2M or L2L, or a domain and one of its children).

use super::unrolled::Unrolled;
use crate::arrange::{Arranged, tiles};
use crate::device::{Buffer, Device, Functions, blocks};
use crate::domains::{KINDS, M2lEnds};
use crate::equivalent::DeviceScalar;
use crate::products::Across;
use crate::programs::{RCR_THREADS, RcrShape, rcr_program};
use fmm_kernels::spherical::Truncation;
use fmm_kernels::spherical::coaxial::Step;
use fmm_kernels::spherical::dense::family;
use fmm_kernels::spherical::rcr::{Course, Rcr};
use fmm_kernels::spherical::rotation::Rotation;
use fmm_kernels::spherical::shift::Shift;
use fmm_traits::{Cube, Error};
use std::sync::Arc;

/// Rows of a matrix that a thread computes at once.
const TILE_ROWS: usize = 4;

/// The first course of each kind. Before these come the operators of M2L.
#[derive(Clone, Copy, Debug)]
struct First {
    /// M2M, one per octant.
    up: usize,
    /// L2L, one per octant.
    down: usize,
    /// From a domain to a child, one per kind of domain and octant.
    within: usize,
}

impl First {
    /// The places behind `across` operators of M2L.
    fn behind(across: usize) -> First {
        First { up: across, down: across + 8, within: across + 16 }
    }
}

/// The tables of the kernel, in f64.
#[derive(Debug)]
struct Tables {
    /// Jobs of the rotations: a code, and the place of the first number of the tile.
    turns: Vec<[u32; 2]>,
    /// Jobs of the translation along z.
    shifts: Vec<[u32; 2]>,
    /// For each (n, m): its place in a row, and the degree in the upper 16 bits.
    places: Vec<u32>,
    /// For each course: the place of the first number of the rotation there, the same of the rotation back, the order
    /// read, and the order written.
    courses: Vec<[u32; 4]>,
    phases: Vec<[f64; 2]>,
    rotations: Vec<f64>,
    /// The matrices along z, by step.
    coaxial: [Vec<f64>; 3],
}

/// A tile of a matrix: ([degree or m, 1 for sines, first row], number of columns).
type Block = ([usize; 3], usize);

/// The jobs of some tiles. Groups of threads take jobs in turn (group k of K takes jobs k, k + K, …). The largest
/// jobs come first, so that all groups have about the same work. `place` says where the tiles of a matrix begin.
fn jobs(mut blocks: Vec<Block>, place: impl Fn(usize, usize) -> usize) -> Vec<[u32; 2]> {
    blocks.sort_by_key(|b| std::cmp::Reverse(b.1));
    let code = |[n, sine, first]: [usize; 3]| (n | (sine << 8) | (first << 16)) as u32;
    blocks.into_iter().map(|(of, columns)| [code(of), (place(of[0], of[1]) + of[2] * columns) as u32]).collect()
}

/// Appends a matrix of `size` rows and columns in tiles.
fn push_tiles(to: &mut Vec<f64>, size: usize, entry: impl Fn(usize, usize) -> f64) {
    for first in (0..size).step_by(TILE_ROWS) {
        for j in 0..size {
            to.extend((first..first + TILE_ROWS).map(|i| if i < size { entry(i, j) } else { 0.0 }));
        }
    }
}

/// Length of a matrix in tiles.
fn tiled(size: usize) -> usize {
    size.next_multiple_of(TILE_ROWS) * size
}

/// First row of each tile.
fn rows(size: usize) -> impl Iterator<Item = usize> {
    (0..size).step_by(TILE_ROWS)
}

impl Tables {
    /// The tables of order `p`. `operators` are those of M2L, as in [`M2lEnds`]; the domains of `ends` hand down.
    fn new(p: usize, truncation: Truncation, operators: &[[Cube; 2]], ends: &M2lEnds) -> Self {
        let rcr = Rcr::<f64>::new(p);
        // For each degree the matrix of the cosines, then the matrix of the sines.
        let of_degree =
            |n: usize, sine: usize| (0..n).map(|k| tiled(k + 1) + tiled(k)).sum::<usize>() + sine * tiled(n + 1);
        let degrees = || (0..p).flat_map(|n| (0..2).map(move |sine| (n, sine, n + 1 - sine)));
        let turns =
            degrees().flat_map(|(n, sine, size)| rows(size).map(move |first| ([n, sine, first], size))).collect();
        let of_m = |m: usize, _| (0..m).map(|k| tiled(p - k)).sum::<usize>();
        let columns = (0..p).flat_map(|m| (0..if m > 0 { 2 } else { 1 }).map(move |sine| (m, sine)));
        let shifts = columns.flat_map(|(m, sine)| rows(p - m).map(move |first| ([m, sine, first], p - m))).collect();
        let mut tables = Tables {
            turns: jobs(turns, of_degree),
            shifts: jobs(shifts, of_m),
            places: (0..p).flat_map(|n| (0..=n).map(move |m| ((n * n + m) | (n << 16)) as u32)).collect(),
            courses: Vec::new(),
            phases: Vec::new(),
            rotations: Vec::new(),
            coaxial: [Step::Up, Step::Across, Step::Down].map(|step| {
                let mut all = Vec::new();
                for m in 0..p {
                    let block = rcr.coaxial().block(step, m);
                    push_tiles(&mut all, p - m, |i, j| block[i * (p - m) + j]);
                }
                all
            }),
        };
        let across = |&[target, source]: &[Cube; 2]| Shift::across(target, source, p, truncation);
        let mut courses: Vec<Course<f64>> =
            operators.iter().map(|pair| rcr.course(Step::Across, &across(pair))).collect();
        let families: Vec<[Cube; 2]> = (0..8).map(family).map(|(parent, child)| [parent, child]).collect();
        courses.extend(families.iter().map(|&[parent, child]| rcr.course(Step::Up, &Shift::up(parent, child, p))));
        courses.extend(families.iter().map(|&[parent, child]| rcr.course(Step::Down, &Shift::down(child, parent, p))));
        let within = ends.handed_down();
        courses.extend(within.iter().map(|&[from, to]| rcr.course(Step::Down, &Shift::down(to, from, p))));
        let mut known: Vec<(*const Rotation<f64>, [u32; 2])> = Vec::new();
        for course in &courses {
            let rotation = course.rotation();
            let found = known.iter().find(|k| k.0 == Arc::as_ptr(rotation)).map(|k| k.1);
            let [there, back] = found.unwrap_or_else(|| {
                let starts = tables.push_rotation(p, rotation);
                known.push((Arc::as_ptr(rotation), starts));
                starts
            });
            let [read, write] = course.orders().map(|n| n as u32);
            tables.courses.push([there, back, read, write]);
            for phases in course.phases() {
                // Zeros for degrees that the course does not use.
                let rest = p * (p + 1) / 2 - phases.turns().len();
                tables.phases.extend(phases.turns().iter().copied().chain(std::iter::repeat_n([0.0; 2], rest)));
            }
        }
        tables
    }

    /// Appends the tiles of a rotation. Returns where the tiles of the rotation there and of the rotation back begin.
    fn push_rotation(&mut self, p: usize, rotation: &Rotation<f64>) -> [u32; 2] {
        [false, true].map(|back| {
            let start = self.rotations.len() as u32;
            for (n, first) in (0..p).flat_map(|n| [(n, 0), (n, 1)]) {
                let (block, size) = (rotation.block(n, first), n + 1 - first);
                push_tiles(&mut self.rotations, size, |i, j| block[if back { j * size + i } else { i * size + j }]);
            }
            start
        })
    }
}

/// The translations of one order on the device.
#[derive(Debug)]
pub(super) struct Rotations<T> {
    device: Device,
    shape: RcrShape,
    first: First,
    functions: Functions,
    /// The addresses of `words` and `numbers`, and the numbers of jobs.
    table: Buffer<u64>,
    words: Vec<Buffer<u32>>,
    numbers: Vec<Buffer<T>>,
    /// M2L, if the order has unrolled code. Then the tables above have no M2L.
    unrolled: Option<Box<Unrolled<T>>>,
}

impl<T: DeviceScalar> Rotations<T> {
    /// The translations of order `p`, with M2L to `ends`.
    pub fn new(device: &Device, p: usize, truncation: Truncation, ends: &M2lEnds) -> Result<Self, Error> {
        let unrolled = Unrolled::new(device, p, truncation, ends)?.map(Box::new);
        let across = if unrolled.is_some() { &[] } else { &ends.operators[..] };
        let tables = Tables::new(p, truncation, across, ends);
        let Tables { turns, shifts, places, courses, phases, rotations, coaxial } = tables;
        let shape = RcrShape::of::<T>(p, device.info().shared_memory as usize);
        let what = "operators";
        let counts = turns.len() as u64 | ((shifts.len() as u64) << 32);
        let words = [turns.as_flattened(), shifts.as_flattened(), &places, courses.as_flattened()];
        let words = words.iter().map(|w| device.upload(w, what)).collect::<Result<Vec<_>, _>>()?;
        let numbers = [phases.as_flattened(), &rotations, &coaxial[0], &coaxial[1], &coaxial[2]];
        let rounded = |x: &[f64]| x.iter().map(|&x| T::of(x)).collect::<Vec<T>>();
        let numbers = numbers.iter().map(|x| device.upload(&rounded(x), what)).collect::<Result<Vec<_>, _>>()?;
        let [turns, shifts, places, courses] = std::array::from_fn(|i| words[i].address());
        let mut table = vec![turns, shifts, counts, places, courses];
        table.extend(numbers.iter().map(Buffer::address));
        Ok(Rotations {
            device: device.clone(),
            shape,
            first: First::behind(across.len()),
            functions: device.load_sharing(&rcr_program::<T>(p, shape), shape.bytes)?,
            table: device.upload(&table, what)?,
            words,
            numbers,
            unrolled,
        })
    }

    /// Rows that a block of M2L translates at once, and the number of its blocks that a multiprocessor runs at once.
    pub fn tile(&self) -> [usize; 2] {
        match &self.unrolled {
            Some(unrolled) => [unrolled.shape.edges(), unrolled.shape.blocks],
            None => [self.shape.edges, self.shape.blocks],
        }
    }

    /// Enqueues M2L: `to` += Σ translated `from`.
    ///
    /// # Safety
    /// Both arrays have a row for each box.
    pub unsafe fn across(&self, far: &Across<T>, from: &Buffer<T>, to: &Buffer<T>) -> Result<(), Error> {
        let table = &far.table;
        let (functions, operators, block) = match &self.unrolled {
            Some(unrolled) => (&unrolled.functions, &unrolled.table, unrolled.block()),
            None => (&self.functions, &self.table, self.block()),
        };
        for pass in table.passes(0) {
            let args = [
                operators.into(),
                from.into(),
                (&table.table).into(),
                (table.boxes.len() as u32).into(),
                (&table.boxes).into(),
                pass.device_starts,
                pass.numbers,
                to.into(),
                (&far.partial).into(),
            ];
            let grid = [blocks(pass.blocks(self.tile()[0]), 1)?, 1, far.parts as u32];
            // SAFETY: arguments as in rcr.cu and rcr_unrolled.cu; the rows that a pass receives are distinct.
            unsafe { self.device.launch_sharing(functions, "rcr_across", grid, block, &args)? };
        }
        Ok(())
    }

    /// Enqueues M2M or L2L over the edges between the boxes of `level` and their parents. M2M writes each translated
    /// child into the child's own row of `to`. L2L adds to the rows of the children.
    ///
    /// # Safety
    /// Both arrays have a row for each box; each box has one parent.
    pub unsafe fn along(
        &self,
        step: Step,
        edges: &Arranged,
        level: usize,
        from: &Buffer<T>,
        to: &Buffer<T>,
    ) -> Result<(), Error> {
        let (entry, first, receives) = if step == Step::Up {
            ("rcr_up", self.first.up, &edges.from)
        } else {
            ("rcr_down", self.first.down, &edges.to)
        };
        // SAFETY: the caller's promise.
        unsafe { self.launch(entry, first, (edges, receives), level, from, to) }
    }

    /// Enqueues the translations from domains to their children, one kind of domain after the other: they are added to
    /// the rows of the children.
    ///
    /// # Safety
    /// `rows` has a row for each box and each domain; a kind has each child once.
    pub unsafe fn within(&self, edges: &Arranged, rows: &Buffer<T>) -> Result<(), Error> {
        for kind in 0..KINDS {
            let first = self.first.within + 8 * kind;
            // SAFETY: the caller's promise.
            unsafe { self.launch("rcr_down", first, (edges, &edges.to), kind, rows, rows)? };
        }
        Ok(())
    }

    /// Enqueues M2M or L2L along eight courses, from the `first` on, over the edges of eight groups.
    ///
    /// # Safety
    /// The edges exist, and the rows that they receive are distinct.
    unsafe fn launch(
        &self,
        entry: &'static str,
        first: usize,
        (edges, receives): (&Arranged, &Buffer<u32>),
        level: usize,
        from: &Buffer<T>,
        to: &Buffer<T>,
    ) -> Result<(), Error> {
        let args = [
            (&self.table).into(),
            (first as u32).into(),
            from.into(),
            (&edges.from).into(),
            to.into(),
            receives.into(),
            edges.device_starts.at(8 * level),
        ];
        let starts = &edges.starts[8 * level..=8 * level + 8];
        let grid = [blocks(tiles(starts, self.shape.edges), 1)?, 1, 1];
        // SAFETY: arguments as in rcr.cu; the caller promises the rest.
        unsafe { self.device.launch_sharing(&self.functions, entry, grid, self.block(), &args) }
    }

    /// Threads and shared memory of a block.
    fn block(&self) -> (u32, usize) {
        (RCR_THREADS as u32, self.shape.bytes)
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.words.iter().map(Buffer::bytes).sum::<u64>()
            + self.numbers.iter().map(Buffer::bytes).sum::<u64>()
            + self.unrolled.as_ref().map_or(0, |unrolled| unrolled.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `multiply` of rcr.cu for one box.
    fn multiply(
        tile: &[f64],
        count: usize,
        x: &[f64],
        mut step: usize,
        y: &mut [f64],
        mut to: usize,
        more: usize,
        rows: usize,
    ) {
        let (mut sum, mut at) = ([0.0; TILE_ROWS], 0);
        for j in 0..count {
            (0..TILE_ROWS).for_each(|i| sum[i] += tile[TILE_ROWS * j + i] * x[at]);
            at += step;
            step += more;
        }
        at = 0;
        for &sum in &sum[..rows.min(TILE_ROWS)] {
            y[at] = sum;
            at += to;
            to += more;
        }
    }

    /// `translate` of rcr.cu for one box, index by index; `slices` groups of threads take the jobs in turn.
    /// Places that no thread has written are NaN.
    fn translate(t: &Tables, p: usize, kind: Step, number: usize, from: &[f64]) -> Vec<f64> {
        let [there, back, read, write] = t.courses[number].map(|x| x as usize);
        let (mut a, mut b) = (vec![f64::NAN; p * p], vec![f64::NAN; p * p]);
        let pairs = p * (p + 1) / 2;
        let phases = &t.phases[2 * number * pairs..][..2 * pairs];
        for pair in 0..pairs {
            let (place, n) = (t.places[pair] as usize & 0xffff, t.places[pair] as usize >> 16);
            if n < read {
                let sines = place > n * n;
                let (x, y, [c, s]) = (from[place], if sines { from[place + n] } else { 0.0 }, phases[pair]);
                a[place] = c * x + s * y;
                if sines {
                    a[place + n] = c * y - s * x;
                }
            }
        }
        let turn = |is_back: bool, from: &[f64], to: &mut [f64]| {
            for &[code, at] in &t.turns {
                let [n, first, row] = [code & 255, code >> 8 & 255, code >> 16].map(|x| x as usize);
                let size = n + 1 - first;
                if if is_back { n >= write } else { n >= read || row + first >= write } {
                    continue;
                }
                let (place, count) =
                    (n * n + first * (n + 1), if is_back { size.min(read - first.min(read)) } else { size });
                let tile = &t.rotations[if is_back { back } else { there } + at as usize..];
                multiply(tile, count, &from[place..], 1, &mut to[place + row..], 1, 0, size - row);
            }
        };
        turn(false, &a, &mut b);
        let step = [Step::Up, Step::Across, Step::Down].iter().position(|&step| step == kind).unwrap();
        a.fill(f64::NAN);
        for &[code, at] in &t.shifts {
            let [m, sine, row] = [code & 255, code >> 8 & 255, code >> 16].map(|x| x as usize);
            if m >= read.min(write) || m + row >= write {
                continue;
            }
            let begin = if step == 2 { row.min(read - m) } else { 0 };
            let end = if step == 0 { (row + 4).min(read - m) } else { read - m };
            let (k, n) = (m + begin, m + row);
            let tile = &t.coaxial[step][at as usize + 4 * begin..];
            let place = |k: usize| k * k + sine * k + m;
            // If the job reads nothing, its place may lie past the end.
            let x = &b[place(k).min(p * p - 1)..];
            multiply(tile, end - begin, x, 2 * k + 1 + sine, &mut a[place(n)..], 2 * n + 1 + sine, 2, write - n);
        }
        b.fill(f64::NAN);
        turn(true, &a, &mut b);
        let mut sum = vec![0.0; p * p];
        for pair in 0..pairs {
            let (place, n) = (t.places[pair] as usize & 0xffff, t.places[pair] as usize >> 16);
            if n < write {
                let sines = place > n * n;
                let (x, y, [c, s]) = (b[place], if sines { b[place + n] } else { 0.0 }, phases[pairs + pair]);
                sum[place] += c * x - s * y;
                if sines {
                    sum[place + n] += c * y + s * x;
                }
            }
        }
        sum
    }

    /// The index arithmetic of the kernel gives the same results as the translations on the CPU, along all courses.
    #[test]
    fn the_kernel_translates_as_the_cpu_does() {
        let cases = [1, 2, 5, 9, 14].map(|p| (p, Truncation::Fixed));
        let cut = [2, 3, 6, 11].map(|p| [(p, Truncation::Variable), (p, Truncation::Bound)]);
        for (p, truncation) in cases.into_iter().chain(cut.into_iter().flatten()) {
            let ends = M2lEnds::new(true, p < 6);
            let (tables, rcr) = (Tables::new(p, truncation, &ends.operators, &ends), Rcr::<f64>::new(p));
            let first = First::behind(ends.operators.len());
            assert_eq!(tables.courses.len(), first.within + ends.handed_down().len());
            let from: Vec<f64> = (0..p * p).map(|i| (0.7 * i as f64 + 0.3).sin()).collect();
            let check = |number: usize, step, shift: &Shift| {
                let (mut expected, mut work) = (vec![0.0; p * p], vec![0.0; 2 * p * p]);
                rcr.add(&rcr.course(step, shift), &from, &mut expected, &mut work);
                let found = translate(&tables, p, step, number, &from);
                let largest = expected.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
                let close = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-13 * largest);
                assert!(close && largest > 0.0, "order {p}, course {number}: {found:?} {expected:?}");
            };
            for (number, &[target, source]) in ends.operators.iter().enumerate() {
                check(number, Step::Across, &Shift::across(target, source, p, truncation));
            }
            for (i, &[from, to]) in ends.handed_down().iter().enumerate() {
                check(first.within + i, Step::Down, &Shift::down(to, from, p));
            }
            for octant in 0..8 {
                let (parent, child) = family(octant);
                check(first.up + octant, Step::Up, &Shift::up(parent, child, p));
                check(first.down + octant, Step::Down, &Shift::down(child, parent, p));
            }
        }
    }

    /// 316 offsets share a few angles.
    #[test]
    fn rotations_are_shared() {
        let (p, ends) = (3, M2lEnds::new(false, false));
        let tables = Tables::new(p, Truncation::Fixed, &ends.operators, &ends);
        let one: usize = (0..p).map(|n| tiled(n + 1) + tiled(n)).sum();
        let angles = tables.rotations.len() / (2 * one);
        assert!((20..40).contains(&angles), "{angles}");
    }
}
