//! M2L as a convolution: the kernel's Fourier transforms for the 316 offsets of the V list.
//!
//! The inner points of two boxes of one level are the same lattice. The field of a multipole at the inner points of
//! another box therefore depends only on differences of lattice coordinates: it is a convolution (Ying, Biros &
//! Zorin 2004, §3.3.3). Densities are put on a periodic grid of [`Grid::side`]³ points, zero off the lattice. For a
//! target box that is `offset` box sides from the source box,
//!
//! check\[a\] = restriction to the lattice of IFFT( Σ_b Ĝ(offset, a, b) · FFT(density\[b\]) ).
//!
//! # Layout
//!
//! * A grid is real, `side³` numbers; lattice point (x, y, z) is entry `(x·side + y)·side + z`. In the plane it is
//!   `side²` numbers, and (x, y) is entry `x·side + y`: z is then the outermost axis, with one layer.
//! * A spectrum is the Fourier transform of a real grid. Entry `(kx·side + ky)·half + kz` holds frequency (kx, ky, kz),
//!   with kx, ky in `0..side` and kz in `0..half`, `half = side/2 + 1`. The other frequencies along z follow from
//!   Ĝ(−k) = conj Ĝ(k).
//! * Forward: Σ x·e^(−2πi k·n/side); inverse: Σ X·e^(+2πi k·n/side), neither scaled. The factor
//!   1/side³ is in Ĝ.
//! * The period is 2p − 1, the smallest without aliasing. It has the fewest frequencies, and the sum over the V list,
//!   the dominant cost, is linear in their number (compared with 2p in docs/notes/equivalent-densities.md).

use super::lattice::{INNER, Lattice};
use super::matrix::unit_strength;
use super::symmetry::{Reflections, is_permutable};
use fmm_traits::Member;
use rustfft::{Fft, FftPlanner, num_complex::Complex};

/// Number of offsets: all of {−3..3}³ that are not adjacent, i.e. not in {−1..1}³.
pub const OFFSETS: usize = 316;

/// Target anchor minus source anchor for every offset index, in lexicographic order. The offset −o has index
/// `OFFSETS − 1 − index(o)`.
pub fn offsets() -> impl Iterator<Item = [i32; 3]> {
    (0..343i32).map(|i| [i / 49 - 3, i / 7 % 7 - 3, i % 7 - 3]).filter(|o| o.iter().any(|d| d.abs() > 1))
}

/// Index of `offset` in [`offsets`], `None` if the boxes are adjacent or further apart than 3.
pub fn offset_index(offset: [i32; 3]) -> Option<usize> {
    if offset.iter().all(|d| d.abs() <= 1) || offset.iter().any(|d| d.abs() > 3) {
        return None;
    }
    let [x, y, z] = offset.map(|d| d + 3);
    // The 27 adjacent offsets have no index. They lie in the rows (x, y) with both in 2..=4, three per row: count those
    // before `offset`.
    let rows = 3 * (x - 2).clamp(0, 3) + if (2..=4).contains(&x) { (y - 2).clamp(0, 3) } else { 0 };
    let here = (2..=4).contains(&x) && (2..=4).contains(&y) && z > 4;
    Some((49 * x + 7 * y + z - 3 * rows - if here { 3 } else { 0 }) as usize)
}

/// The periodic grid of a lattice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Points per edge.
    pub side: usize,
    /// Points along the outermost axis: `side`, or 1 in the plane.
    pub layers: usize,
}

impl Grid {
    /// The grid of a lattice.
    pub const fn new(lattice: Lattice) -> Self {
        let side = 2 * lattice.order - 1;
        Grid { side, layers: if lattice.dim == 3 { side } else { 1 } }
    }
    /// Distance of neighbouring points in a box of side 1.
    pub const fn spacing(lattice: Lattice) -> f64 {
        INNER / (lattice.order - 1) as f64
    }
    /// The axes of the lattice, from the outermost of the grid to the innermost.
    pub const fn axes(self) -> [usize; 3] {
        if self.layers == 1 { [2, 0, 1] } else { [0, 1, 2] }
    }
    /// Number of grid points.
    pub const fn points(self) -> usize {
        self.layers * self.side * self.side
    }
    /// Stored frequencies along the innermost axis.
    pub const fn half(self) -> usize {
        self.side / 2 + 1
    }
    /// Number of stored frequencies.
    pub const fn frequencies(self) -> usize {
        self.layers * self.side * self.half()
    }
    /// Grid entry of a lattice point.
    pub const fn entry(self, point: [usize; 3]) -> usize {
        let [a, b, c] = self.axes();
        (point[a] * self.side + point[b]) * self.side + point[c]
    }
    /// Grid entry of each point of a lattice, in the order of [`Lattice::coordinates`].
    pub fn entries(self, lattice: Lattice) -> Vec<usize> {
        lattice.coordinates().into_iter().map(|c| self.entry(c)).collect()
    }
}

/// The callback of [`for_each_spectrum`]. Its arguments are the index of an offset, a value, a strength, and the
/// spectrum.
pub type Visit<'a> = &'a mut dyn FnMut(usize, usize, usize, &[Complex<f64>]);

/// Calls `visit(offset index, value a, strength b, spectrum)` once for every offset, value and
/// strength of the equivalent `kernel` on boxes of side 1 on a `lattice`; `spectrum` has
/// [`Grid::frequencies`] entries. Offsets come in no particular order. In the plane only the 40 offsets of its layer
/// come.
///
/// `kernel` takes densities to check values. Offsets that a symmetry of the kernel exchanges share one transform:
/// with reflections and permutations of the axes (radial kernels) 16 of the 316 offsets are transformed,
/// with reflections alone (kernels of vectors, anisotropic ones) 56, without symmetry all. If K(−r) = K(r)ᵀ, the
/// opposite offset has the conjugate spectra, with values and strengths exchanged.
pub fn for_each_spectrum(kernel: &Member, params: &[f64], lattice: Lattice, visit: Visit) {
    let reciprocal = kernel.reciprocal && kernel.values == kernel.strengths;
    let reflections = Reflections::of(kernel, params);
    let permutable = is_permutable(kernel, params);
    let (grid, p) = (Grid::new(lattice), lattice.order);
    let n = grid.side;
    let spacing = Grid::spacing(lattice);
    let scale = 1.0 / grid.points() as f64;
    let fft = FftPlanner::new().plan_fft_forward(n);
    let zero = Complex::new(0.0, 0.0);
    let mut cube = vec![zero; grid.points()];
    let mut spectrum = vec![zero; grid.frequencies()];
    let mut values = vec![0.0; grid.points() * kernel.values];
    // From a periodic index to a difference of lattice coordinates.
    let difference = |i: usize| if i < p { i as f64 } else { i as f64 - n as f64 };
    let mut done = [false; OFFSETS];
    let axes = grid.axes();
    for (o, offset) in offsets().enumerate() {
        if done[o] || grid.layers == 1 && offset[2] != 0 {
            continue;
        }
        let images = images(offset, reflections.axes, permutable);
        let r = |axis: usize, i: usize| offset[axis] as f64 + spacing * difference(i);
        let mut at = vec![[0.0; 3]; grid.points()];
        for (g, at) in at.iter_mut().enumerate() {
            for (axis, i) in axes.into_iter().zip([g / (n * n), g / n % n, g % n]) {
                at[axis] = r(axis, i);
            }
        }
        for b in 0..kernel.strengths {
            let unit = unit_strength(b);
            kernel.eval_many(params, &at, &unit[..kernel.strengths], &mut values);
            for a in 0..kernel.values {
                let values = values.iter().skip(a).step_by(kernel.values);
                cube.iter_mut().zip(values).for_each(|(to, v)| *to = Complex::new(scale * v, 0.0));
                cube = transform(&*fft, n, cube);
                for image in &images {
                    let odd =
                        (image.reflected & (reflections.values[a] ^ reflections.strengths[b])).count_ones() % 2 == 1;
                    image.spectrum(grid, &cube, if odd { -1.0 } else { 1.0 }, &mut spectrum);
                    visit(image.offset, a, b, &spectrum);
                    let opposite = OFFSETS - 1 - image.offset;
                    if reciprocal && images.iter().all(|other| other.offset != opposite) {
                        spectrum.iter_mut().for_each(|x| *x = x.conj());
                        visit(opposite, b, a, &spectrum);
                    }
                }
            }
        }
        for image in &images {
            done[image.offset] = true;
            done[OFFSETS - 1 - image.offset] |= reciprocal;
        }
    }
}

/// An offset o′ with o′\[i\] = ±o\[axes\[i\]\], where o is another offset.
struct Image {
    /// Its index.
    offset: usize,
    axes: [usize; 3],
    /// The axes i with the sign −, as bits.
    reflected: usize,
}

/// The images of an offset, each once, itself among them: under reflections of `axes` (as bits), and under permutations
/// of the axes if the kernel is `permutable`.
fn images(offset: [i32; 3], axes: usize, permutable: bool) -> Vec<Image> {
    const PERMUTATIONS: [[usize; 3]; 6] = [[0, 1, 2], [1, 2, 0], [2, 0, 1], [1, 0, 2], [0, 2, 1], [2, 1, 0]];
    let mut found: Vec<Image> = Vec::new();
    for order in &PERMUTATIONS[..if permutable { 6 } else { 1 }] {
        for reflected in (0..8).filter(|signs| signs & !axes == 0) {
            let sign = |i: usize| if reflected >> i & 1 == 1 { -1 } else { 1 };
            let image = std::array::from_fn(|i| sign(i) * offset[order[i]]);
            match offset_index(image) {
                Some(offset) if found.iter().all(|other| other.offset != offset) => {
                    found.push(Image { offset, axes: *order, reflected });
                }
                _ => {}
            }
        }
    }
    found
}

impl Image {
    /// The spectrum of the image, from the transform `cube` of the offset o. With K(r′) = ±K(r) for r′\[i\] =
    /// ±r\[axes\[i\]\], frequency k′ of the image is frequency k of o with k\[axes\[i\]\] = ±k′\[i\].
    fn spectrum(&self, grid: Grid, cube: &[Complex<f64>], sign: f64, to: &mut [Complex<f64>]) {
        let n = grid.side;
        let axes = grid.axes();
        let mut strides = [0; 3];
        axes.into_iter().zip([n * n, n, 1]).for_each(|(axis, stride)| strides[axis] = stride);
        // What k′[i] adds to the index of k.
        let part = |i: usize, k: usize| {
            let k = if self.reflected >> i & 1 == 1 { (n - k) % n } else { k };
            k * strides[self.axes[i]]
        };
        for (outer, plane) in to.chunks_exact_mut(n * grid.half()).enumerate() {
            for (middle, line) in plane.chunks_exact_mut(grid.half()).enumerate() {
                let begin = part(axes[0], outer) + part(axes[1], middle);
                line.iter_mut().enumerate().for_each(|(k, to)| *to = cube[begin + part(axes[2], k)] * sign);
            }
        }
    }
}

/// The three-dimensional transform of a cube of `n`³ numbers, or the two-dimensional one of `n`² numbers. Each of the
/// passes transforms the contiguous axis and then permutes the axes cyclically.
pub(super) fn transform(fft: &dyn Fft<f64>, n: usize, mut cube: Vec<Complex<f64>>) -> Vec<Complex<f64>> {
    let mut rotated = cube.clone();
    let rows = cube.len() / n;
    for _ in 0..if rows == n { 2 } else { 3 } {
        fft.process(&mut cube);
        for (row, line) in cube.chunks_exact(n).enumerate() {
            for (k, &x) in line.iter().enumerate() {
                rotated[k * rows + row] = x;
            }
        }
        std::mem::swap(&mut cube, &mut rotated);
    }
    cube
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Laplace, Stokes, StokesPressure};
    use fmm_traits::{Family, Kernels, Outputs, Traced};

    trait Made: Family + Sized {
        fn kernels(&self) -> Kernels {
            Kernels::of(self, Outputs::POTENTIAL).unwrap()
        }
    }
    impl<F: Family> Made for F {}

    #[test]
    fn offsets_are_indexed_in_order_and_reverse_to_their_negatives() {
        let all: Vec<_> = offsets().collect();
        assert_eq!(all.len(), OFFSETS);
        for (i, &o) in all.iter().enumerate() {
            assert_eq!(offset_index(o), Some(i), "{o:?}");
            assert_eq!(all[OFFSETS - 1 - i], o.map(|d| -d));
        }
        assert_eq!(offset_index([1, -1, 0]), None);
        assert_eq!(offset_index([4, 0, 0]), None);
    }

    /// All spectra of a kernel, sorted.
    fn all(kernel: &Member, params: &[f64], p: usize) -> Vec<([usize; 3], Vec<Complex<f64>>)> {
        let mut found = Vec::new();
        let lattice = if kernel.dim == 3 { Lattice::surface(p) } else { Lattice::surface(p).in_plane() };
        for_each_spectrum(kernel, params, lattice, &mut |o, a, b, s| found.push(([o, a, b], s.to_vec())));
        found.sort_by_key(|(at, _)| *at);
        found
    }

    /// Spectra of images are those of the kernel itself.
    #[test]
    fn symmetries_change_no_spectrum() {
        let [laplace, stokes] =
            [Laplace.kernels(), Stokes { mu: 0.7 }.kernels()].map(|k| (k.members.equivalent, k.params));
        let pressure = StokesPressure { mu: 0.7 }.kernels();
        let stretched = Traced::parse("value 1/sqrt(x^2 + 4*y^2 + z^2)").unwrap().kernels(Outputs::POTENTIAL).unwrap();
        let skewed = Traced::parse("value exp(x*y)/r").unwrap().kernels(Outputs::POTENTIAL).unwrap();
        let [flat, flat_skewed] = ["value bessel_k0(r)", "value ln(x^2 + y^2 + x*y/2)"]
            .map(|text| Traced::parse(text).unwrap().in_plane().kernels(Outputs::POTENTIAL).unwrap());
        let others = [pressure, stretched, skewed, flat, flat_skewed].map(|k| (k.members.equivalent, k.params));
        for (kernel, params) in [laplace, stokes].into_iter().chain(others) {
            let mut plain = kernel.clone();
            (plain.piecewise, plain.reciprocal) = (true, false);
            for p in [3, 4] {
                let (found, expected) = (all(&kernel, &params, p), all(&plain, &params, p));
                let offsets = if kernel.dim == 3 { OFFSETS } else { 40 };
                assert_eq!(found.len(), offsets * kernel.values * kernel.strengths);
                let largest = expected.iter().flat_map(|(_, s)| s).fold(0.0f64, |m, x| m.max(x.norm()));
                for ((at, found), (other, expected)) in found.iter().zip(&expected) {
                    assert_eq!(at, other);
                    let close = found.iter().zip(expected).all(|(a, b)| (a - b).norm() <= 1e-13 * largest);
                    assert!(close, "{} {at:?}", kernel.name);
                }
            }
        }
    }

    #[test]
    fn images_are_those_of_the_cube() {
        let count = |permutable, axes| offsets().map(|o| images(o, axes, permutable).len()).collect::<Vec<_>>();
        assert_eq!(count(true, 7)[0], 8);
        assert_eq!(images([1, 2, 3], 7, true).len(), 48);
        assert_eq!(images([0, 2, 3], 7, false).len(), 4);
        assert_eq!(images([1, 2, 3], 0b100, false).len(), 2);
        assert_eq!(images([1, 2, 3], 0, false).len(), 1);
    }
}
