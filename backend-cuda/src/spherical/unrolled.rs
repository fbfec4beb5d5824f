//! M2L by rotations whose matrices stand in the code: tables and launches of `kernels/rcr_unrolled.cu`.

use crate::compile::Program;
use crate::device::{Buffer, Device, Functions};
use crate::domains::M2lEnds;
use crate::equivalent::DeviceScalar;
use crate::programs::of_harmonics;
use fmm_kernels::spherical::Truncation;
use fmm_kernels::spherical::coaxial::{Coaxial, Step};
use fmm_kernels::spherical::rcr::Route;
use fmm_kernels::spherical::rotation::{exchange, multiples};
use fmm_kernels::spherical::shift::Shift;
use fmm_traits::{Error, Real};
use std::fmt::Write;

/// Edges of a team: one per lane of a warp.
const LANES: usize = 32;
/// Warps of a block.
const BLOCK_WARPS: usize = 4;
/// Registers of a multiprocessor.
const REGISTERS: usize = 65536;
/// The highest order with unrolled code. Code of order 12 takes 2 to 4 s to compile, of order 16 8 s.
const MAX_ORDER: usize = 12;
/// Numbers of a course, for each degree.
const PER_DEGREE: usize = 10;

/// The shape of the blocks that translate rows with unrolled code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnrolledShape {
    /// Warps that share the work on 32 edges. More warps hold fewer sums each, but each runs code of its own.
    pub warps: usize,
    /// Blocks that fit on a multiprocessor.
    pub blocks: usize,
    /// Bytes of shared memory per block.
    pub bytes: usize,
}

impl UnrolledShape {
    /// The shape for rows of order `p` if a block can have `memory` bytes of shared memory. `None` for orders above 12,
    /// whose code takes long to compile, and if rows do not fit.
    pub fn of<T: Real>(p: usize, memory: usize) -> Option<UnrolledShape> {
        // The sums, two vectors of the highest degree, and the rest, as the compiler reported them.
        let wide = size_of::<T>() / 4;
        let registers = |warps: usize| wide * ((p * p).div_ceil(warps) + 2 * (2 * p - 1)) + 30;
        // With a few numbers too many for the 255 registers of a thread the code is still faster than that of more warps.
        let warps = [1, 2].into_iter().find(|&w| registers(w) <= 270).unwrap_or(BLOCK_WARPS);
        let rows = BLOCK_WARPS / warps * LANES * ((p * p) | 1);
        let bytes = (rows + PER_DEGREE * p) * size_of::<T>();
        // The list of slots, and the 1 KB that the system takes.
        let by_memory = (memory + 1024) / (bytes + 4 * 217 + 1024);
        let by_registers = REGISTERS / (BLOCK_WARPS * LANES * registers(warps).min(255).next_multiple_of(8));
        let blocks = by_memory.min(by_registers);
        (p <= MAX_ORDER && blocks > 0).then_some(UnrolledShape { warps, blocks, bytes })
    }

    /// Rows that a block translates at once.
    pub fn edges(&self) -> usize {
        BLOCK_WARPS / self.warps * LANES
    }
}

/// Gives each job to the warp with the least work so far, the largest jobs first. Returns the warp of each job.
fn share_out(costs: &[usize], warps: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..costs.len()).collect();
    order.sort_by_key(|&job| std::cmp::Reverse(costs[job]));
    let (mut work, mut of) = (vec![0; warps], vec![0; costs.len()]);
    for job in order {
        let warp = (0..warps).min_by_key(|&w| work[w]).unwrap_or(0);
        of[job] = warp;
        work[warp] += costs[job];
    }
    of
}

/// M2L of harmonics of order `p`, with the matrices in the text of the program.
pub fn rcr_unrolled_program<T: Real>(p: usize, shape: UnrolledShape) -> Program {
    let warps = shape.warps;
    let of_degree = share_out(&(0..p).map(|n| 2 * (n * n + n + 1) + 12 * n).collect::<Vec<_>>(), warps);
    // Cosines and sines of each m; m = 0 has no sines.
    let columns: Vec<usize> = (0..2 * p).map(|k| if k == 1 { 0 } else { (p - k / 2) * (p - k / 2 + 2) }).collect();
    let of_column = share_out(&columns, warps);
    let mut sums = vec![0; warps];
    let places: Vec<usize> = (0..p)
        .map(|n| {
            let at = sums[of_degree[n]];
            sums[of_degree[n]] += 2 * n + 1;
            at
        })
        .collect();
    let coaxial = Coaxial::<f64>::new(p);
    let along: Vec<f64> = (0..p).flat_map(|m| coaxial.block(Step::Across, m).to_vec()).collect();
    let mut tables = String::new();
    for (name, numbers) in [("EXCHANGE", exchange(p).concat()), ("ALONG", along)] {
        let single = T::NAME == "f32";
        let entry = |&x: &f64| if single { format!("{:?}f", x as f32) } else { format!("{x:?}") };
        let list: Vec<String> = numbers.iter().map(entry).collect();
        let _ = writeln!(tables, "__device__ constexpr REAL {name}[] = {{{}}};", list.join(", "));
    }
    for (name, numbers) in [("WARP_OF_DEGREE", of_degree), ("PLACE_OF_DEGREE", places), ("WARP_OF_COLUMN", of_column)] {
        let list: Vec<String> = numbers.iter().map(usize::to_string).collect();
        let _ = writeln!(tables, "__device__ constexpr int {name}[] = {{{}}};", list.join(", "));
    }
    let most = sums.iter().copied().max().unwrap_or(0);
    let (teams, blocks) = (BLOCK_WARPS / warps, shape.blocks);
    let definitions = [("ORDER", p), ("WARPS", warps), ("TEAMS", teams), ("BLOCKS", blocks), ("SUMS", most)];
    let source = tables + include_str!("../../kernels/rcr_unrolled.cu");
    of_harmonics::<T>("rcr_unrolled.cu", &source, &definitions, &["rcr_across"])
}

/// The numbers of a course: cosines and sines of the multiples of α, −α, β and −β, then the scales of each degree before
/// and after.
fn course(p: usize, shift: &Shift) -> Vec<f64> {
    let Route { scales, alpha, beta, below } = Route::new(Step::Across, shift);
    // The reflection multiplies by (−1)^(n + m): half a turn about z more, and a sign of the scales.
    let sign: f64 = if below { -1.0 } else { 1.0 };
    let mut numbers = Vec::with_capacity(PER_DEGREE * p);
    for angle in [alpha.map(|x| sign * x), beta] {
        let turns = multiples(angle, p);
        numbers.extend(turns.iter().flatten());
        numbers.extend(turns.iter().flat_map(|&[c, s]| [c, -s]));
    }
    for scale in scales {
        let all = scale.iter().copied().chain(std::iter::repeat(0.0)).take(p);
        numbers.extend(all.enumerate().map(|(n, x)| if n % 2 == 1 { sign * x } else { x }));
    }
    numbers
}

/// The translations of M2L of one order on the device.
#[derive(Debug)]
pub(super) struct Unrolled<T> {
    pub shape: UnrolledShape,
    pub functions: Functions,
    /// The addresses of `orders` and `numbers`.
    pub table: Buffer<u64>,
    orders: Buffer<u32>,
    numbers: Buffer<T>,
}

impl<T: DeviceScalar> Unrolled<T> {
    /// The translations of order `p` to `ends`; `None` if the order has no unrolled code.
    pub fn new(device: &Device, p: usize, truncation: Truncation, ends: &M2lEnds) -> Result<Option<Self>, Error> {
        let Some(shape) = UnrolledShape::of::<T>(p, device.info().shared_memory as usize) else { return Ok(None) };
        let shifts: Vec<Shift> =
            ends.operators.iter().map(|&[target, source]| Shift::across(target, source, p, truncation)).collect();
        let orders: Vec<u32> = shifts.iter().flat_map(|shift| shift.orders.map(|n| n as u32)).collect();
        let numbers: Vec<T> = shifts.iter().flat_map(|shift| course(p, shift)).map(T::of).collect();
        let (orders, numbers) = (device.upload(&orders, "operators")?, device.upload(&numbers, "operators")?);
        Ok(Some(Unrolled {
            shape,
            functions: device.load_sharing(&rcr_unrolled_program::<T>(p, shape), shape.bytes)?,
            table: device.upload(&[orders.address(), numbers.address()], "operators")?,
            orders,
            numbers,
        }))
    }

    /// Threads and shared memory of a block.
    pub fn block(&self) -> (u32, usize) {
        ((BLOCK_WARPS * LANES) as u32, self.shape.bytes)
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.orders.bytes() + self.numbers.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fmm_kernels::spherical::rcr::Rcr;

    /// `rcr_across` for one edge, with the numbers and the matrices that the kernel gets.
    fn translate(p: usize, shift: &Shift, from: &[f64]) -> Vec<f64> {
        let (numbers, exchange, coaxial) = (course(p, shift), exchange(p), Coaxial::<f64>::new(p));
        let turns = |k: usize, m: usize| [numbers[2 * (k * p + m)], numbers[2 * (k * p + m) + 1]];
        let turn = |k: usize, n: usize, x: &mut [f64]| {
            for m in 1..=n {
                let ([c, s], a, b) = (turns(k, m), x[m], x[n + m]);
                (x[m], x[n + m]) = (c * a + s * b, c * b - s * a);
            }
        };
        let rotate = |back: usize, order: usize, row: &[f64]| {
            let mut all = vec![0.0; p * p];
            for n in 0..order {
                let width = 2 * n + 1;
                let scale = numbers[8 * p + back * p + n];
                let mut x: Vec<f64> = row[n * n..][..width].iter().map(|x| scale * x).collect();
                if back == 0 {
                    turn(0, n, &mut x);
                }
                let at = |i: usize, j: usize| exchange[n][i * width + j];
                let mut y: Vec<f64> = (0..width).map(|i| (0..width).map(|j| at(i, j) * x[j]).sum()).collect();
                turn(2 + back, n, &mut y);
                x = (0..width).map(|i| (0..width).map(|j| at(j, i) * y[j]).sum()).collect();
                if back == 1 {
                    turn(1, n, &mut x);
                }
                all[n * n..][..width].copy_from_slice(&x);
            }
            all
        };
        let [read, write] = shift.orders;
        let mut row = rotate(0, read, from);
        for m in 0..read.min(write) {
            for sine in 0..if m > 0 { 2 } else { 1 } {
                let place = |i: usize| (m + i) * (m + i) + sine * (m + i) + m;
                let x: Vec<f64> = (0..p - m).map(|i| row[place(i)]).collect();
                for (i, line) in coaxial.block(Step::Across, m).chunks(p - m).enumerate() {
                    row[place(i)] = line.iter().zip(&x).map(|(a, b)| a * b).sum();
                }
            }
        }
        rotate(1, write, &row)
    }

    /// The numbers of a course and the matrices give the same results as the translations on the CPU, along all courses.
    #[test]
    fn the_kernel_translates_as_the_cpu_does() {
        for (p, truncation) in [(1, Truncation::Fixed), (4, Truncation::Fixed), (9, Truncation::Variable)] {
            let rcr = Rcr::<f64>::new(p);
            let from: Vec<f64> = (0..p * p).map(|i| (0.7 * i as f64 + 0.3).sin()).collect();
            for &[target, source] in &M2lEnds::new(true, p < 6).operators {
                let shift = Shift::across(target, source, p, truncation);
                let (mut expected, mut work) = (vec![0.0; p * p], vec![0.0; 2 * p * p]);
                rcr.add(&rcr.course(Step::Across, &shift), &from, &mut expected, &mut work);
                let found = translate(p, &shift, &from);
                let largest = expected.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
                let close = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-13 * largest);
                assert!(close && largest > 0.0, "order {p}, {shift:?}: {found:?} {expected:?}");
            }
        }
    }

    /// Each warp of a team has about the same work.
    #[test]
    fn jobs_are_shared_out() {
        assert_eq!(share_out(&[3, 1, 5, 1], 2), [1, 1, 0, 1]);
        assert_eq!(share_out(&[2, 2], 1), [0, 0]);
    }
}
