//! How large a kernel is at the distances between boxes, and where in a tree errors are likely to be large.
//!
//! In most clouds errors are of one size at most leaves. In others a few targets have nearly all of the error: most points
//! lie in clusters that are summed pair by pair, and a few lie just so far beside a cluster that an expansion carries its
//! field to them. A sample of some leaves would miss these targets. Therefore leaves are also drawn with a
//! probability that grows with the mean square of an estimated error at their targets ([`fmm_tree::far_squares`]). The
//! estimate is a sum over all boxes whose expansions reach a target. Each box counts by its number of sources, by the size
//! of the kernel at its distance, and by a power of its size divided by this distance. The estimate only steers the draw:
//! it is no bound, and the error is measured.

use super::sampled::{Direct, HALF_CORNER_POWER, Sampled};
use fmm_families::Facts;
use fmm_traits::Error;
use fmm_tree::DISTANCES;

/// Directions in which a kernel is evaluated, with unlike coordinates, so that no symmetry of a kernel makes it vanish in
/// all of them.
const DIRECTIONS: [[f64; 3]; 6] = [
    [0.48, 0.6, 0.64],
    [-0.8, 0.36, 0.48],
    [0.6, -0.48, 0.64],
    [0.28, 0.96, 0.0],
    [-0.352, -0.936, 0.0],
    [0.96, -0.28, 0.0],
];
/// Distances up to the diagonal of the root at which it is seen whether a kernel is 0 everywhere, besides those of boxes.
const STEPS: usize = 40;

/// The sizes of a kernel, one entry for each output.
#[derive(Clone, Debug)]
pub(crate) struct Decay {
    /// The largest value at the distance of the side of the root, of half of the side, and so on, in a unit in which
    /// the largest of these numbers is 1.
    sizes: Vec<[f64; DISTANCES]>,
    /// Whether no value was found that is not 0, at any distance.
    pub vanishes: Vec<bool>,
}

impl Decay {
    /// Evaluates the kernel at the distances of boxes of a tree. A source has these `attributes`. All ranks of a tree
    /// find the same.
    pub fn new(site: &impl Sampled, facts: &Facts, attributes: &[f64], direct: Direct) -> Result<Decay, Error> {
        let side = site.root_side();
        let of_boxes = (0..DISTANCES).map(|k| side * 0.5f64.powi(k as i32));
        let between = (1..=STEPS).map(|k| side * 3f64.sqrt() * k as f64 / STEPS as f64);
        let at = |r: f64| DIRECTIONS.into_iter().flat_map(move |d| d.map(|x| r * x).into_iter().take(facts.dim));
        let targets: Vec<f64> = of_boxes.chain(between).flat_map(at).collect();
        let sets: Vec<Vec<f64>> = (0..facts.linear())
            .map(|c| {
                (0..facts.linear()).map(|k| f64::from(u8::from(k == c))).chain(attributes.iter().copied()).collect()
            })
            .collect();
        let mut rows = direct(&vec![0.0; facts.dim], &super::slices(&sets), &targets)?;
        facts.pull_back(&mut rows);
        let (mut all, mut vanishes) = (Vec::new(), Vec::new());
        for output in &facts.columns {
            let largest = |place: usize| {
                let values = rows.iter().flat_map(|rows| {
                    let of_place =
                        rows.chunks_exact(facts.values).skip(place * DIRECTIONS.len()).take(DIRECTIONS.len());
                    of_place.flat_map(|row| output.columns.iter().map(|&c| row[c].abs()))
                });
                values.filter(|x| x.is_finite()).fold(0.0, f64::max)
            };
            let mut sizes: [f64; DISTANCES] = std::array::from_fn(largest);
            let most = sizes.iter().copied().fold(0.0, f64::max);
            vanishes.push(most == 0.0 && (DISTANCES..DISTANCES + STEPS).all(|place| largest(place) == 0.0));
            sizes.iter_mut().for_each(|x| *x /= if most > 0.0 { most } else { 1.0 });
            all.push(sizes);
        }
        Ok(Decay { sizes: all, vanishes })
    }

    /// A factor for each box by the estimated errors of all outputs, for both kinds of expansions that
    /// [`fmm_tree::far_squares`] tells apart: [`Sampled::far_factors`]. So one sample serves both. An estimate grows like an
    /// error of order 12; [`HALF_CORNER_POWER`] is half the power of its square.
    pub fn far_factors<S: Sampled>(&self, site: &S) -> Result<Option<S::Numbers>, Error> {
        site.far_factors(&self.sizes, HALF_CORNER_POWER / 2)
    }
}
