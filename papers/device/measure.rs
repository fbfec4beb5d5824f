//! One case on the device: times of its stages, of tree and lists, and its error.

use backend_cuda::{
    CallerPoints, Device, DeviceArray, DeviceStream, Direct, Plan, Root, SphericalSettings, Translation, TreeOptions,
    build, uvwx,
};
use fmm_kernels::Laplace;
use fmm_kernels::equivalent::Lattice;
use fmm_kernels::spherical::Truncation;
use fmm_traits::testkit::clouds::{CloudKind, Generator};
use fmm_traits::{Error, Kernels, Outputs, Stage, Targets};
use fmm_tree::ListOptions;
use std::time::Instant;

/// Targets at which errors are measured.
const SAMPLES: usize = 1000;
/// Runs of which a time is the median.
const RUNS: usize = 20;

/// The expansion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// Equivalent densities.
    Equivalent,
    /// Spherical harmonics, translated by dense products or by rotations.
    Spherical(Translation),
}

impl Method {
    /// The method called `name`.
    pub fn named(name: &str) -> Option<Method> {
        match name {
            "equivalent" => Some(Method::Equivalent),
            "spherical" => Some(Method::Spherical(Translation::Dense)),
            "spherical-rcr" => Some(Method::Spherical(Translation::Rcr)),
            _ => None,
        }
    }
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Method::Equivalent => "equivalent densities",
            Method::Spherical(Translation::Dense) => "spherical harmonics, dense products",
            Method::Spherical(Translation::Rcr) => "spherical harmonics, rotations",
            Method::Spherical(Translation::Domains) => "spherical harmonics, domains",
        }
    }
    /// Orders to try for an error, from the cheapest on.
    pub fn orders(self) -> std::ops::RangeInclusive<usize> {
        match self {
            Method::Equivalent => 3..=8,
            Method::Spherical(_) => 4..=16,
        }
    }
    /// Sources or targets below which far edges are summed pair by pair.
    fn few(self, order: usize) -> usize {
        match self {
            Method::Equivalent => Lattice::surface(order).len(),
            Method::Spherical(_) => order.pow(2),
        }
    }
}

/// How boxes are split.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Leaves {
    /// A root of which a level has boxes of this many points.
    Holding(f64),
    /// The octree of the unit cube down to this level.
    Level(i32),
}

impl Leaves {
    fn options(self, n: usize) -> TreeOptions {
        // Few leaves hold so many points, and few of their parents so few.
        let between = |s: f64| (s + 4.0 * s.sqrt()).min(4.0 * s).ceil() as usize;
        match self {
            Leaves::Holding(s) => TreeOptions { ncrit: (1.6 * s) as usize, min_side: 0.0, root: Root::Holding(s) },
            Leaves::Level(level) => {
                let s = n as f64 * 8f64.powi(-level);
                TreeOptions { ncrit: between(s).max(1), min_side: 0.0, root: Root::Given([0.0; 3], 1.0) }
            }
        }
    }
}

/// Uniform sources with strengths in (0, 1), and targets.
pub struct Cloud<'a> {
    device: &'a Device,
    sources: Vec<f64>,
    strengths: Vec<f64>,
    /// `None`: the sources.
    targets: Option<Vec<f64>>,
}

impl<'a> Cloud<'a> {
    /// `n` sources; as many other targets and one more, or none.
    pub fn new(device: &'a Device, n: usize, others: bool) -> Cloud<'a> {
        let mut generator = Generator::new(3);
        Cloud {
            device,
            sources: CloudKind::Uniform.points(n, 1),
            strengths: (0..n).map(|_| generator.uniform()).collect(),
            targets: others.then(|| CloudKind::Uniform.points(n + 1, 2)),
        }
    }

    fn at(&self) -> Targets<'_> {
        self.targets.as_deref().map_or(Targets::Sources, Targets::Points)
    }

    /// Seconds of the direct sum, with everything in device memory.
    pub fn direct(&self, outputs: Outputs) -> Result<f64, Error> {
        let repeats = if self.strengths.len() > 1 << 18 { 3 } else { RUNS };
        Direct::<f32>::new(self.device, &Kernels::of(&Laplace, outputs)?, &self.sources, self.at(), None)?
            .seconds(&self.strengths, repeats)
    }

    /// Measures one case.
    pub fn measure(&self, method: Method, outputs: Outputs, order: usize, leaves: Leaves) -> Result<Seen, Error> {
        let (device, n) = (self.device, self.strengths.len());
        let given = CallerPoints::new(device, "sources", &self.sources)?;
        let others = self.targets.as_deref().map(|t| CallerPoints::new(device, "targets", t)).transpose()?;
        let options = leaves.options(n);
        let few = method.few(order);
        let few = ListOptions { m2p_min_sources: few, p2l_min_targets: few };
        let prepare = || {
            let tree = build(device, &given, others.as_ref(), &options)?;
            let lists = uvwx(&tree, &few)?;
            device.synchronize()?;
            Ok((tree, lists))
        };
        let prepared = median(|| prepare().map(|_| ()))?;
        let (tree, lists) = prepare()?;
        let mut plan = match method {
            Method::Equivalent => Plan::<f32, f32>::new(&Laplace, outputs, order, None, tree, lists)?,
            Method::Spherical(translation) => {
                let settings =
                    SphericalSettings { truncation: Truncation::Fixed, translation: Some(translation), parents: false };
                Plan::spherical(&Laplace, outputs, order, settings, tree, lists)?
            }
        };
        let (columns, boxes) = (plan.columns().to_vec(), plan.tree().len());

        let strengths = DeviceArray::new(device, &self.strengths)?;
        let m = plan.tree().targets.len();
        let zeros = columns.iter().map(|c| DeviceArray::zeros::<f64>(device, m * c.columns.len()));
        let values = zeros.collect::<Result<Vec<_>, _>>()?;
        let apply = median(|| {
            plan.enqueue(&strengths, &values, &DeviceStream::Null)?;
            plan.synchronize()
        })?;
        plan.set_beside(Some(false));
        let mut runs = Vec::new();
        for _ in 0..5 {
            runs.push(plan.apply(&self.strengths, &mut |_, _| true)?.1);
        }
        let stages = std::array::from_fn(|s| {
            let mut of: Vec<f64> = runs.iter().map(|r| r[s]).collect();
            of.sort_by(f64::total_cmp);
            of[of.len() / 2]
        });

        let found = plan.apply(&self.strengths, &mut |_, _| true)?.0;
        let chosen: Vec<usize> = (0..SAMPLES.min(m)).map(|i| i * (m / SAMPLES.min(m))).collect();
        let points: Vec<f64>;
        let at = match &self.targets {
            None => Targets::Subset(&chosen),
            Some(t) => {
                points = chosen.iter().flat_map(|&i| t[3 * i..3 * i + 3].iter().copied()).collect();
                Targets::Points(&points)
            }
        };
        let exact = Direct::<f64>::new(device, &Kernels::of(&Laplace, outputs)?, &self.sources, at, None)?
            .apply(&self.strengths)?;
        let width = plan.values();
        let error = |columns: &[usize]| {
            let pairs = chosen
                .iter()
                .enumerate()
                .flat_map(|(k, &i)| columns.iter().map(move |&c| (k * width + c, i * width + c)));
            let [e, size] =
                pairs.fold([0.0; 2], |[e, size], (k, i)| [e + (found[i] - exact[k]).powi(2), size + exact[k].powi(2)]);
            f64::sqrt(e / size)
        };
        let errors = columns.iter().map(|o| error(&o.columns)).collect();
        Ok(Seen { stages, apply, prepared, errors, boxes })
    }

    /// The leaves of those given with which tree, lists and evaluation take least.
    pub fn best(&self, method: Method, outputs: Outputs, order: usize, leaves: &[f64]) -> Result<(f64, Seen), Error> {
        let mut best: Option<(f64, Seen)> = None;
        for &leaf in leaves {
            let seen = self.measure(method, outputs, order, Leaves::Holding(leaf))?;
            if best.as_ref().is_none_or(|(_, b)| seen.whole() < b.whole()) {
                best = Some((leaf, seen));
            }
        }
        let why = "some leaves are needed".to_string();
        best.ok_or(Error::Shape { array: "leaves", found: 0, expected: 1, why })
    }
}

/// What was measured, in seconds.
pub struct Seen {
    /// Each stage alone.
    pub stages: [f64; Stage::ALL.len()],
    /// An evaluation, with P2P beside the far field where that pays.
    pub apply: f64,
    /// Tree and lists.
    pub prepared: f64,
    /// Relative ℓ2 error of each output.
    pub errors: Vec<f64>,
    /// Boxes of the tree.
    pub boxes: usize,
}

impl Seen {
    /// Seconds of some stages.
    pub fn sum(&self, stages: &[Stage]) -> f64 {
        stages.iter().map(|&s| self.stages[s as usize]).sum()
    }
    /// Tree, lists and evaluation.
    pub fn whole(&self) -> f64 {
        self.prepared + self.apply
    }
}

/// Seconds of a function that returns when the device is done: the median, after two to warm up.
fn median(mut f: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let mut times = Vec::new();
    for _ in 0..RUNS + 2 {
        let start = Instant::now();
        f()?;
        times.push(start.elapsed().as_secs_f64());
    }
    let times = &mut times[2..];
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
