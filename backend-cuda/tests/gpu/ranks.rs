//! Several ranks, as threads, against one rank. They share the devices that are there, in turn.

use crate::far::difference;
use crate::{Test, in_turn};
use backend_cuda::{
    CallerPoints, Device, DeviceOptions, Expansion, JointPoints, Placed, Routes, Settings, Sharing, SphericalSettings,
    Works, solver,
};
use fmm_dist::local::opens_uvwx;
use fmm_dist::{Asked, Comm, Ready, Strategy, World, threads};
use fmm_kernels::equivalent::Fill;
use fmm_kernels::{Laplace, LaplaceDipole, LaplaceMixed};
use fmm_traits::testkit::clouds::{CloudKind, normal_strengths};
use fmm_traits::{Error, Family, Kernels, Messages, Outputs, Policy, Precision, Stage};
use fmm_tree::{BuildOptions, ListOptions, TreecodeOptions};
use std::sync::Arc;

pub const TESTS: &[Test] = &[
    ("ranks::equivalent_densities_have_the_bits_of_one_rank", equivalent),
    ("ranks::spherical_harmonics_agree_with_one_rank", spherical),
    ("ranks::messages_of_bytes_have_the_same_bits", bytes),
    ("ranks::an_error_of_one_rank_is_that_of_all", errors),
    ("ranks::shares_of_a_tree_have_the_bits_of_one_device", shares),
];

/// Points of a leaf, and sizes of the clouds: a few levels of boxes for some seconds on an emulated GPU.
const NCRIT: usize = 12;
const POINTS: usize = 700;

/// What a rank does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// As `Usual`, with a share of a tree that all ranks have, made of the points of all ranks or of their keys.
    Share { gathered: bool },
    /// Strengths and values travel from device to device.
    Usual,
    /// They travel on the host.
    ByHost,
    /// Stops the first evaluation.
    Fails,
}

/// Strengths of the sources of a tree, with those of ghosts.
fn with_ghosts(ready: &Ready, strengths: Vec<f64>, width: usize) -> Result<Vec<f64>, Error> {
    let shared = ready.tree.shared.as_ref().unwrap();
    let exchange = shared.exchange.as_ref().unwrap();
    let component = |c: usize| strengths.iter().skip(c).step_by(width).copied().collect();
    let components: Vec<Vec<f64>> = (0..width).map(component).collect();
    exchange.lend(&components)?;
    let ghosts = exchange.ghosts(width)?;
    let own = shared.first..shared.first + ready.tree.sources.len() - ghosts[0].len();
    let of = |i: usize, c: usize| match i {
        _ if own.contains(&i) => components[c][i],
        _ if i < own.start => ghosts[c][i],
        _ => ghosts[c][i - own.len()],
    };
    Ok((0..ready.tree.sources.len()).flat_map(|i| (0..width).map(move |c| (i, c))).map(|(i, c)| of(i, c)).collect())
}

/// A sum, and how it is planned.
struct Sum {
    kernels: Kernels,
    settings: Settings,
    precision: Precision,
    points: Vec<f64>,
    /// Targets apart from the sources.
    targets: Option<Vec<f64>>,
    strengths: Vec<f64>,
}

impl Sum {
    fn new<F: Family>(family: &F, expansion: Expansion, order: usize, precision: Precision, kind: CloudKind) -> Sum {
        let kernels = Kernels::of(family, Outputs::POTENTIAL | Outputs::GRADIENT).unwrap();
        let settings = Settings {
            expansion,
            policy: Policy::Uvwx,
            order,
            lists: ListOptions::default(),
            beside: None,
            cache: None,
        };
        let strengths = normal_strengths(POINTS * kernels.near.strengths, 2);
        Sum { kernels, settings, precision, points: kind.points(POINTS, 1), targets: None, strengths }
    }

    fn options(&self) -> BuildOptions {
        BuildOptions { ncrit: Some(NCRIT), ..BuildOptions::default() }
    }

    /// The sums of one rank, whose tree is made on the host.
    fn on_one(&self, device: &Device) -> Vec<f64> {
        let (tree, _) = fmm_tree::build_reported(&self.points, self.targets.as_deref(), &self.options()).unwrap();
        let lists = match self.settings.policy {
            Policy::Uvwx => fmm_tree::uvwx(&tree, &self.settings.lists).unwrap(),
            Policy::Stencil119 => fmm_tree::stencil119(&tree, &self.settings.lists).unwrap(),
            Policy::Treecode { theta } => {
                let options = TreecodeOptions { theta, m2p_min_sources: self.settings.lists.m2p_min_sources };
                fmm_tree::treecode(&tree, &options, fmm_kernels::equivalent::expansion::m2p_valid).unwrap()
            }
        };
        let placed = Placed::upload(device, &tree, &lists, None).unwrap();
        let solver = solver(&self.kernels, &self.settings, self.precision, placed).unwrap();
        let mut out = vec![0.0; tree.targets.len() * solver.values()];
        solver.apply(&self.strengths, &mut out, &mut |_, _| true).unwrap();
        out
    }

    /// The sums of a rank that has a share of the whole tree, evaluated twice. `gathered`: the tree is made of the points of all
    /// ranks, else of their keys.
    fn on_share(&self, devices: &[Device], world: &World, gathered: bool) -> Result<Vec<f64>, Error> {
        let piece = |n: usize, rank: usize| n * rank / world.size()..n * (rank + 1) / world.size();
        let (width, device) = (self.kernels.near.strengths, &devices[world.rank() % devices.len()]);
        let messages: Arc<dyn Messages> = Arc::new(world.clone());
        let all = |name, points: &[f64]| {
            let mine = piece(points.len() / 3, world.rank());
            let own = CallerPoints::new(device, name, &points[3 * mine.start..3 * mine.end])?;
            JointPoints::new(own, &messages, name)
        };
        let solver = world.together(|| {
            let sources = all("sources", &self.points)?;
            let targets = self.targets.as_ref().map(|targets| all("targets", targets)).transpose()?;
            let all = targets.as_ref().map(|targets| targets.gathered()).transpose()?;
            let mut placed = Placed::new(device, &self.options(), &sources.gathered()?, all.as_ref())?;
            if !gathered {
                let counts = placed.counts(&self.settings)?;
                let joint = Placed::joint(device, &self.options(), &sources, targets.as_ref())?;
                placed = joint.expect("few points have equal keys");
                assert_eq!(placed.counts(&self.settings)?, counts);
            }
            let works = Works { pair: 1.0, near_edge: 9.0, far_edge: 99.0, far_point: 9.0, leaf: 99.0, target: 20.0 };
            let sharing = Sharing { sources, targets, speeds: vec![1.0; world.size()], works };
            let (placed, share) = placed.share(&self.settings, sharing)?;
            // Shares of few leaves cannot be equal.
            assert!(share.imbalance >= 1.0 && (share.imbalance < 1.3 || world.size() > 4), "{share:?}");
            solver(&self.kernels, &self.settings, self.precision, placed)
        })?;
        let own = |points: &[f64]| {
            let mine = piece(points.len() / 3, world.rank());
            points[3 * mine.start..3 * mine.end].to_vec()
        };
        let points = world.together(|| solver.points())?;
        assert_eq!(points, [own(&self.points), self.targets.as_deref().map_or(Vec::new(), own)]);
        let mine = piece(POINTS, world.rank());
        let of_targets = piece(self.targets.as_ref().map_or(POINTS, |targets| targets.len() / 3), world.rank());
        let mut out = vec![0.0; of_targets.len() * solver.values()];
        for _ in 0..2 {
            let mine = &self.strengths[mine.start * width..mine.end * width];
            out.fill(f64::NAN);
            world.together(|| solver.apply(mine, &mut out, &mut |_, _| true).map(drop))?;
        }
        Ok(out)
    }

    /// The sums of a rank, each evaluated twice.
    fn on_rank(&self, devices: &[Device], world: &World, strategy: Strategy, how: How) -> Result<Vec<f64>, Error> {
        if let How::Share { gathered } = how {
            return self.on_share(devices, world, gathered);
        }
        let share = |rank: usize| POINTS * rank / world.size();
        let mine = share(world.rank())..share(world.rank() + 1);
        let (width, device) = (self.kernels.near.strengths, &devices[world.rank() % devices.len()]);
        let (ready, solver) = world.together(|| {
            let asked =
                Asked { options: self.options(), strategy, opens: &opens_uvwx, speeds: &vec![1.0; world.size()] };
            let placed = fmm_dist::place(world, &self.points[3 * mine.start..3 * mine.end], None, &asked)?;
            let mut lists = fmm_tree::uvwx(placed.tree(), &self.settings.lists)?;
            let ready = placed.settle(&mut lists)?;
            let [strengths, ghosts, values] = ready.rounds();
            let routes = Routes { given: ready.given(), strengths, ghosts, values };
            let there = Placed::upload(device, &ready.tree, &lists, (how != How::ByHost).then_some(routes))?;
            Ok((ready, solver(&self.kernels, &self.settings, self.precision, there)?))
        })?;
        let mut out = vec![0.0; mine.len() * solver.values()];
        for first in [true, false] {
            let mine = &self.strengths[mine.start * width..mine.end * width];
            let mut watch = |stage: Stage, _: f64| !(how == How::Fails && first && stage == Stage::M2l);
            world
                .together(|| {
                    if how != How::ByHost {
                        return solver.apply(mine, &mut out, &mut watch).map(drop);
                    }
                    let strengths = with_ghosts(&ready, ready.strengths(mine, width)?, width)?;
                    let mut values = vec![0.0; ready.tree.targets.len() * solver.values()];
                    solver.apply(&strengths, &mut values, &mut watch)?;
                    ready.values(&values, solver.values(), &mut out)
                })
                .or_else(|e| if fails_as_told(&e) && first && world.size() > 1 { Ok(()) } else { Err(e) })?;
        }
        Ok(out)
    }

    fn on_ranks(&self, device: &Device, ranks: usize, strategy: Strategy, how: How) -> Vec<f64> {
        let devices = &devices(device);
        let all = threads(ranks, |world| self.on_rank(devices, &world, strategy, how));
        all.into_iter().flat_map(|part| part.unwrap().unwrap()).collect()
    }

    /// Compares ranks with one rank. Returns whether all sums had its bits.
    fn check(&self, device: &Device, name: &str, strategies: &[Strategy], ranks: &[usize]) -> bool {
        let one = self.on_one(device);
        let bound = if self.precision == Precision::F64 { 1e-13 } else { 1e-6 };
        let mut same = true;
        for (s, &strategy) in strategies.iter().enumerate() {
            for (_, &ranks) in ranks.iter().enumerate().filter(|(r, _)| in_turn(device, s + r, 2)) {
                let found = self.on_ranks(device, ranks, strategy, How::Usual);
                let e = difference(&found, &one);
                println!("    {name}, {} on {ranks} ranks: {e:.1e}", strategy.name());
                assert!(e <= bound * (ranks as f64).sqrt(), "{name}, {} on {ranks}: {e}", strategy.name());
                same = same && (strategy != Strategy::Frontier || found == one);
            }
        }
        same
    }
}

/// The given device, the first, and further ones of this machine.
fn devices(first: &Device) -> Vec<Device> {
    let further = (1..4).map_while(|ordinal| Device::shared(&DeviceOptions { ordinal, ..Default::default() }).ok());
    std::iter::once(first.clone()).chain(further).collect()
}

fn fails_as_told(e: &Error) -> bool {
    matches!(e, Error::Rank { rank: 1, error } if matches!(**error, Error::Cancelled { stage: "m2l" }))
}

const SURFACE: Expansion = Expansion::Equivalent(Fill::Surface);

fn equivalent(device: &Device) {
    let ellipsoid = CloudKind::Ellipsoid;
    let few = [Strategy::Frontier, Strategy::Direct];
    let all = Strategy::ALL.map(|(strategy, _)| strategy);
    let sum = Sum::new(&Laplace, SURFACE, 3, Precision::F64, CloudKind::Uniform);
    assert!(sum.check(device, "laplace in f64", &few, &[1, 2, 3]));
    let sum = Sum::new(&Laplace, SURFACE, 3, Precision::F32, ellipsoid);
    assert!(sum.check(device, "laplace in f32", &all, &[3]));
    // With net strengths.
    let sum = Sum::new(&LaplaceMixed, SURFACE, 3, Precision::F32, ellipsoid);
    assert!(sum.check(device, "charges and dipoles in f32", &few, &[2, 3]));
    // Interpolation.
    let sum = Sum::new(&Laplace, Expansion::Equivalent(Fill::Volume), 3, Precision::F64, ellipsoid);
    assert!(sum.check(device, "interpolation", &[Strategy::Frontier], &[2]));
}

/// M2L of harmonics cuts its sums into parts by the number of boxes, so that ranks agree to rounding.
fn spherical(device: &Device) {
    let settings = SphericalSettings { truncation: Default::default(), translation: None, parents: false };
    let harmonics = Expansion::Spherical(settings);
    let few = [Strategy::Frontier, Strategy::Direct];
    let sum = Sum::new(&Laplace, harmonics, 4, Precision::F32, CloudKind::Ellipsoid);
    sum.check(device, "harmonics in f32", &few, &[1, 2, 3]);
    let sum = Sum::new(&Laplace, harmonics, 4, Precision::F64, CloudKind::Ellipsoid);
    sum.check(device, "harmonics in f64", &few, &[3]);
    let sum = Sum::new(&LaplaceDipole, harmonics, 5, Precision::F64, CloudKind::Uniform);
    sum.check(device, "harmonics of dipoles", &[Strategy::Manager], &[3]);
}

/// Dense M2L cuts its sums into parts by the number of boxes that are read, so that harmonics agree to rounding.
fn shares(device: &Device) {
    let ellipsoid = CloudKind::Ellipsoid;
    let check = |sum: &Sum, name: &str, ranks: &[usize], bits: bool| {
        let one = sum.on_one(device);
        for &ranks in ranks {
            for (_, gathered) in [false, true].into_iter().enumerate().filter(|(g, _)| in_turn(device, ranks + g, 2)) {
                let found = sum.on_ranks(device, ranks, Strategy::Frontier, How::Share { gathered });
                let e = difference(&found, &one);
                println!("    {name}, shares of {ranks} ranks: {e:.1e}");
                assert!(found == one || !bits && e <= 1e-13, "{name} on {ranks}, gathered {gathered}: {e}");
            }
        }
    };
    let sum = Sum::new(&Laplace, SURFACE, 3, Precision::F64, CloudKind::Uniform);
    check(&sum, "laplace in f64", &[1, 2, 3, 4, 9], true);
    let mut sum = Sum::new(&LaplaceMixed, SURFACE, 3, Precision::F32, ellipsoid);
    check(&sum, "charges and dipoles in f32", &[2, 3], true);
    sum.targets = Some(CloudKind::Uniform.points(500, 5));
    check(&sum, "separate targets", &[3], true);
    let mut sum = Sum::new(&Laplace, SURFACE, 3, Precision::F64, CloudKind::Plummer);
    sum.settings.policy = Policy::Treecode { theta: 0.5 };
    check(&sum, "treecode", &[3], true);
    let harmonics = |parents: bool| {
        let settings = SphericalSettings { truncation: Default::default(), translation: None, parents };
        Sum::new(&Laplace, Expansion::Spherical(settings), 4, Precision::F64, ellipsoid)
    };
    check(&harmonics(false), "harmonics", &[2], false);
    let mut sum = harmonics(true);
    sum.settings.policy = Policy::Stencil119;
    check(&sum, "119 translations", &[3], false);
    // By messages that hold the numbers.
    let sum = Sum::new(&Laplace, SURFACE, 3, Precision::F64, ellipsoid);
    let devices = &devices(device);
    let apart = threads(2, |world| sum.on_share(devices, &World::new(Arc::new(Apart(world.transport()))), false));
    let apart: Vec<f64> = apart.into_iter().flat_map(|part| part.unwrap().unwrap()).collect();
    assert_eq!(apart, sum.on_one(device));
}

/// A transport between processes, whose messages hold the rows themselves.
struct Apart(Arc<dyn Comm>);

impl Comm for Apart {
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn size(&self) -> usize {
        self.0.size()
    }
    fn send(&self, to: usize, message: Arc<Vec<u8>>) -> Result<(), Error> {
        self.0.send(to, message)
    }
    fn receive(&self, from: usize) -> Result<Vec<u8>, Error> {
        self.0.receive(from)
    }
}

fn bytes(device: &Device) {
    let devices = &devices(device);
    for strategy in [Strategy::Frontier, Strategy::Hypercube] {
        let sum = Sum::new(&LaplaceMixed, SURFACE, 3, Precision::F32, CloudKind::Ellipsoid);
        let near = sum.on_ranks(device, 3, strategy, How::Usual);
        let apart = threads(3, |world| {
            let world = World::new(Arc::new(Apart(world.transport())));
            sum.on_rank(devices, &world, strategy, How::Usual)
        });
        let apart: Vec<f64> = apart.into_iter().flat_map(|part| part.unwrap().unwrap()).collect();
        assert_eq!(near, apart, "{}", strategy.name());
        let by_host = threads(3, |world| sum.on_rank(devices, &world, strategy, How::ByHost));
        let by_host: Vec<f64> = by_host.into_iter().flat_map(|part| part.unwrap().unwrap()).collect();
        assert_eq!(near, by_host, "{}", strategy.name());
    }
}

/// Rank 1 stops in its first evaluation; the second is as if nothing had been.
fn errors(device: &Device) {
    let sum = Sum::new(&Laplace, SURFACE, 3, Precision::F64, CloudKind::Uniform);
    let (one, devices) = (sum.on_one(device), &devices(device));
    let how = |rank: usize| if rank == 1 { How::Fails } else { How::Usual };
    let all = threads(3, |world| sum.on_rank(devices, &world, Strategy::Frontier, how(world.rank())));
    let found: Vec<f64> = all.into_iter().flat_map(|part| part.unwrap().unwrap()).collect();
    assert_eq!(found, one);
}
