//! Rotate – coaxial – rotate back: translations in O(p³) (Gumerov & Duraiswami 2008, §2.2.2, eq. 33).
//!
//! The axes are rotated until the offset of the two boxes lies along z; the row is translated along z; then the axes
//! are rotated back. Each rotation takes 2p³/3 + O(p²) products, and so does the translation, instead of p⁴.
//!
//! A rotation matrix depends only on the angle β between the offset and the z axis. Offsets in an octree are integer
//! multiples of half the smaller side, so there are few angles. Each matrix is made when it is first used, and kept.
//! Directions with β > π/2 use the matrix of π − β (eq. 34).

use super::coaxial::{Coaxial, Step};
use super::direct::powers;
use super::rotation::{Phases, Rotation};
use super::shift::Shift;
use fmm_traits::{Real, SimdLane};
use std::sync::{Arc, OnceLock};

/// A *course*: one prepared translation, with everything that depends on its offset and sides. A course depends only on
/// ratios of lengths, so all edges with the same offset in box sides can share it, on any level.
#[derive(Clone, Debug)]
pub struct Course<T> {
    step: Step,
    orders: [usize; 2],
    /// The rotations about z before and after, which also scale by degree.
    phases: [Phases<T>; 2],
    rotation: Arc<Rotation<T>>,
}

impl<T> Course<T> {
    /// Orders read and written.
    pub fn orders(&self) -> [usize; 2] {
        self.orders
    }

    /// The rotations about z before and after, which also scale by degree.
    pub fn phases(&self) -> &[Phases<T>; 2] {
        &self.phases
    }

    /// The rotation about y. Courses of the same angle share it.
    pub fn rotation(&self) -> &Arc<Rotation<T>> {
        &self.rotation
    }

    /// Bytes held, the shared rotation not included.
    pub fn bytes(&self) -> u64 {
        self.phases.iter().map(Phases::bytes).sum()
    }
}

/// tan²β as a reduced fraction: the integers (ρ², k²) without their common factors.
type Angle = [u32; 2];

/// The numbers that a translation needs beside the matrices of its order.
#[derive(Clone, Debug)]
pub struct Route {
    /// A scale for each degree read, before the translation along z, and for each degree written, after it.
    pub scales: [Vec<f64>; 2],
    /// Cosine and sine of the angle about z that takes the offset into the half plane y = 0, x ≥ 0.
    pub alpha: [f64; 2],
    /// Cosine and sine of the angle between the offset and the z axis, or of its complement to π.
    pub beta: [f64; 2],
    /// Whether the offset points below the plane z = 0, so that the reflection z → −z precedes and follows (eq. 34).
    pub below: bool,
}

impl Route {
    /// The numbers of `shift`.
    pub fn new(step: Step, shift: &Shift) -> Self {
        let [x, y, z] = shift.offset;
        let (rho, d) = (x.hypot(y), shift.distance());
        let [before, after] = shift.orders;
        let (from, to) = (shift.from_side, shift.to_side);
        let scales: [Vec<f64>; 2] = match step {
            Step::Up => [powers(from / d, before), powers(d / to, after)],
            Step::Across => [powers(from / d, before), powers::<f64>(to / d, after + 1).split_off(1)],
            Step::Down => {
                let after = powers::<f64>(to / d, after).into_iter().map(|x| to / from * x);
                [powers(d / from, before), after.collect()]
            }
        };
        Route {
            scales,
            alpha: if rho > 0.0 { [x / rho, y / rho] } else { [1.0, 0.0] },
            beta: [z.abs() / d, rho / d],
            below: z < 0.0,
        }
    }
}

/// The tables of one order, and the rotations made so far.
#[derive(Debug)]
pub struct Rcr<T> {
    order: usize,
    coaxial: Coaxial<T>,
    /// The kept rotations, sorted by angle.
    rotations: Vec<(Angle, OnceLock<Arc<Rotation<T>>>)>,
}

/// Largest coordinate of an offset, in halves of the smaller side, whose rotation is kept. The V list has even
/// numbers up to 6, a child and the neighbourhood of its parent odd numbers up to 5, domains of children both up to
/// 6.
const KEPT_REACH: u32 = 6;

/// The angle of an offset, given by the magnitudes of its coordinates.
fn angle([i, j, k]: [u32; 3]) -> Angle {
    let (rho2, k2) = (i * i + j * j, k * k);
    let (mut a, mut b) = (rho2, k2);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    [rho2 / a.max(1), k2 / a.max(1)]
}

impl<T: Real> Rcr<T> {
    /// Tables for expansions of `order`.
    pub fn new(order: usize) -> Self {
        let mut angles: Vec<Angle> = (0..=KEPT_REACH)
            .flat_map(|i| (0..=KEPT_REACH).flat_map(move |j| (0..=KEPT_REACH).map(move |k| [i, j, k])))
            .map(angle)
            .collect();
        angles.sort_unstable();
        angles.dedup();
        let rotations = angles.into_iter().map(|a| (a, OnceLock::new())).collect();
        Rcr { order, coaxial: Coaxial::new(order), rotations }
    }

    /// The tables of the translation along z, between the two rotations.
    pub fn coaxial(&self) -> &Coaxial<T> {
        &self.coaxial
    }

    /// Bytes of the rotations made so far.
    pub fn bytes(&self) -> u64 {
        self.rotations.iter().filter_map(|(_, r)| r.get()).map(|r| r.bytes()).sum()
    }

    /// Prepares the translation `shift`.
    pub fn course(&self, step: Step, shift: &Shift) -> Course<T> {
        let Route { scales, alpha: [cos_alpha, sin_alpha], beta: [cos_beta, sin_beta], below } =
            Route::new(step, shift);
        Course {
            step,
            orders: shift.orders,
            phases: scales.map(|scales| Phases::new(&scales, cos_alpha, sin_alpha, below)),
            rotation: self.rotation(shift, cos_beta, sin_beta),
        }
    }

    /// The rotation for the direction of `shift`. The rotation is kept if the offset occurs in an octree.
    fn rotation(&self, shift: &Shift, cos_beta: f64, sin_beta: f64) -> Arc<Rotation<T>> {
        let new = || Arc::new(Rotation::new(self.order, cos_beta, sin_beta));
        let half = 0.5 * shift.from_side.min(shift.to_side);
        let steps = shift.offset.map(|x| (x / half).abs());
        if steps.iter().any(|x| x.fract() != 0.0 || *x > KEPT_REACH as f64) {
            return new();
        }
        let key = angle(steps.map(|x| x as u32));
        match self.rotations.binary_search_by_key(&key, |(a, _)| *a) {
            // From the angle alone, so that no bit depends on which of several parallel offsets comes first.
            Ok(at) => {
                let [rho2, k2] = key.map(f64::from);
                let parts = [k2, rho2].map(|x| (x / (rho2 + k2)).sqrt());
                self.rotations[at].1.get_or_init(|| Arc::new(Rotation::new(self.order, parts[0], parts[1]))).clone()
            }
            Err(_) => new(),
        }
    }

    /// `to` += translation of `from` along `course`. `work` is scratch: two rows of the order.
    #[inline(always)]
    pub fn add<V: SimdLane<Scalar = T>>(&self, course: &Course<T>, from: &[V], to: &mut [V], work: &mut [V]) {
        let p = self.order;
        let [read, write] = course.orders;
        let (a, b) = work.split_at_mut(p * p);
        course.phases[0].apply(read, from, a);
        course.rotation.apply(read, write, p, a, b);
        self.coaxial.apply(course.step, course.orders, b, a);
        course.rotation.apply_back(write, read, p, a, b);
        course.phases[1].add_back(write, b, to);
    }
}
