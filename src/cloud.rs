//! The points of a plan: as the caller gives them, and where the processor of the plan reads them.

use crate::engine::{Placement, Sites, Trees};
use crate::request::{Fmm, Method};
use crate::validate;
use backend_cuda::{CallerPoints, DeviceArray, DeviceStream, DeviceTargets, JointPoints};
use fmm_dist::World;
use fmm_families::{Facts, Place};
use fmm_traits::{Error, Messages, Targets};
use std::sync::{Arc, OnceLock};

/// Points as a caller gives them.
#[derive(Clone, Copy)]
pub(crate) enum Given<'a> {
    /// Arrays of the host.
    Host(&'a [f64], Targets<'a>),
    /// Arrays of a device: sources, and targets unless they are the sources. The arrays are read after the work that is
    /// already in the stream.
    Device(&'a DeviceArray, Option<&'a DeviceArray>, &'a DeviceStream),
}

impl<'a> Given<'a> {
    /// Numbers of sources and targets, after a check of shapes and indices.
    pub fn counts(&self, dim: usize) -> Result<[usize; 2], Error> {
        match *self {
            Given::Host(sources, targets) => {
                let n = validate::count("sources", sources.len(), dim)?;
                let m = match targets {
                    Targets::Sources => n,
                    Targets::Points(t) => validate::count("targets", t.len(), dim)?,
                    Targets::Subset(s) => match s.iter().find(|&&i| i >= n) {
                        Some(&found) => {
                            let (what, limit) = ("index of a target", n.saturating_sub(1));
                            return Err(Error::TooMany { what, found, limit });
                        }
                        None => s.len(),
                    },
                };
                Ok([n, m])
            }
            Given::Device(sources, targets, _) => {
                let n = validate::count("sources", sources.len(), dim)?;
                Ok([n, targets.map_or(Ok(n), |t| validate::count("targets", t.len(), dim))?])
            }
        }
    }

    /// The indices of the targets, if they are a subset of the sources.
    pub fn subset(&self) -> Option<&[usize]> {
        if let Given::Host(_, Targets::Subset(s)) = self { Some(s) } else { None }
    }

    /// Whether the targets are separate points.
    pub fn separate(&self) -> bool {
        matches!(self, Given::Host(_, Targets::Points(_)) | Given::Device(_, Some(_), _))
    }

    /// The arrays of the host.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for arrays of a device.
    pub fn on_host(&self) -> Result<(&'a [f64], Targets<'a>), Error> {
        match *self {
            Given::Host(sources, targets) => Ok((sources, targets)),
            Given::Device(..) => {
                let reason = "these sums take arrays of the host".to_string();
                Err(Error::Unsupported { operation: "arrays on a device", reason })
            }
        }
    }

    /// Whether the arrays are on a device.
    pub fn on_device(&self) -> bool {
        matches!(self, Given::Device(..))
    }
}

/// Checked points where their processor reads them.
pub(crate) enum Cloud<'a> {
    /// On the host, with the trees that candidates have left.
    Host(&'a [f64], Targets<'a>, Arc<Sites>),
    /// On a device.
    Device(There),
    /// On the devices of several ranks.
    Ranks(Box<OfRanks>, Option<(&'a [f64], Targets<'a>)>),
}

/// Points on a device.
pub(crate) struct There {
    pub sources: Arc<CallerPoints>,
    pub targets: DeviceTargets,
    /// The trees that were built for them.
    pub trees: Trees,
}

/// The points of all ranks, of which each has its own on its device.
#[derive(Clone)]
pub(crate) struct OfRanks {
    pub sources: JointPoints,
    /// `None` if the targets are the sources.
    pub targets: Option<JointPoints>,
    /// Copies of the points of all ranks, if they were asked for.
    gathered: Arc<OnceLock<There>>,
}

impl OfRanks {
    /// The targets.
    pub fn targets(&self) -> &JointPoints {
        self.targets.as_ref().unwrap_or(&self.sources)
    }

    /// The same without copies of the points of other ranks, and without the trees that were built for them.
    pub fn without_gathered(self) -> OfRanks {
        OfRanks { gathered: Arc::default(), ..self }
    }

    /// The points of all ranks on the device of each. Candidates share them. All ranks call it together.
    ///
    /// # Errors
    /// Errors of a device, and those of other ranks.
    pub fn gathered(&self) -> Result<&There, Error> {
        if let Some(there) = self.gathered.get() {
            return Ok(there);
        }
        let sources = Arc::new(self.sources.gathered()?);
        let targets = match &self.targets {
            None => DeviceTargets::Sources,
            Some(targets) => DeviceTargets::Points(Arc::new(targets.gathered()?)),
        };
        // All ranks have the points, or none: the next call is the same on all.
        self.sources.wait()?;
        Ok(self.gathered.get_or_init(|| There { sources, targets, trees: Trees::default() }))
    }
}

impl<'a> Cloud<'a> {
    /// Checks points, and copies them to the device if the plan is for a GPU. `counts` are those of [`Given::counts`].
    /// Without sources or without targets nothing is copied.
    ///
    /// # Errors
    /// [`Error::NotFinite`]; [`Error::Unsupported`] for arrays of a device and a plan for a CPU, or with attributes;
    /// errors of a device.
    pub fn of(request: &Fmm, facts: &Facts, given: Given<'a>, counts: [usize; 2]) -> Result<Self, Error> {
        let refuse =
            |reason: &str| Err(Error::Unsupported { operation: "arrays on a device", reason: reason.to_string() });
        let empty = counts.contains(&0);
        // A quadtree is an octree at z = 0. A pyramid has points of the plane.
        let placed = |sources: CallerPoints, targets: DeviceTargets| {
            let sources = Arc::new(sources);
            let (sources, targets) = match request.family.place() {
                Place::Space => (sources.in_space()?, targets.in_space()?),
                Place::Plane(_) => (sources, targets),
            };
            Ok(Cloud::Device(There { sources, targets, trees: Trees::default() }))
        };
        let device = match given {
            Given::Host(..) if empty => None,
            _ => request.backend.processor().opened(request).transpose()?,
        };
        // To copy points from the host takes longer than to load all programs. Points on a device take less time, and then the tree
        // can begin: `Placed` loads the other programs while it builds the tree.
        let in_tree = !empty && request.method != Method::Direct && matches!(request.family.place(), Place::Space);
        let load = || match (given, &device) {
            (Given::Host(..), Some(_)) => request.backend.processor().load(request),
            (Given::Device(..), Some(device)) if in_tree => device.load_programs_of_trees(),
            _ => Ok(()),
        };
        let cloud = || match (given, &device) {
            (Given::Host(sources, targets), None) => Cloud::host(facts, sources, targets),
            (Given::Host(sources, targets), Some(device)) => {
                let there = CallerPoints::of_dim(device, facts.dim, "sources", sources)?;
                let placement = Placement::of(facts, sources, targets);
                placed(there, DeviceTargets::new(device, facts.dim, placement.targets())?)
            }
            (Given::Device(..), None) => refuse("the plan is for a CPU: choose the backend `Cuda`"),
            (Given::Device(..), _) if facts.attributes > 0 => {
                refuse("the attributes of the sources are on the host, and so must be the points")
            }
            (Given::Device(..), _) if empty => Ok(Cloud::Host(&[], Targets::Sources, Arc::default())),
            (Given::Device(sources, targets, stream), Some(device)) => {
                let copy = |name, points| CallerPoints::copied(device, facts.dim, name, points, stream);
                let there = copy("sources", sources)?;
                let targets = match targets {
                    None => DeviceTargets::Sources,
                    Some(t) => DeviceTargets::Points(Arc::new(copy("targets", t)?)),
                };
                placed(there, targets)
            }
        };
        // The first plan of a process waits for programs. If one fails, the tree reports it, after errors of the points.
        rayon::join(cloud, load).0
    }

    /// Checks the points of this rank, and copies them to its device. All ranks call it together.
    ///
    /// # Errors
    /// [`Error::NotFinite`], errors of a device, and those of other ranks.
    pub fn of_all_ranks(request: &Fmm, facts: &Facts, given: Given<'a>, world: &World) -> Result<Self, Error> {
        let Some(device) = request.backend.processor().opened(request).transpose()? else {
            let reason = "the plan is for a CPU".to_string();
            return Err(Error::Unsupported { operation: "one tree for all ranks", reason });
        };
        let messages: Arc<dyn Messages> = Arc::new(world.clone());
        let (sources, targets, host) = match given {
            Given::Host(sources, targets) => {
                let there = CallerPoints::new(&device, "sources", sources)?;
                let placement = Placement::of(facts, sources, targets);
                let apart =
                    placement.points().map(|points| CallerPoints::new(&device, "targets", points)).transpose()?;
                (there, apart, Some((sources, targets)))
            }
            Given::Device(sources, targets, stream) => {
                let copy = |name, points| CallerPoints::copied(&device, facts.dim, name, points, stream);
                (copy("sources", sources)?, targets.map(|targets| copy("targets", targets)).transpose()?, None)
            }
        };
        let sources = JointPoints::new(sources, &messages, "sources")?;
        let targets = targets.map(|own| JointPoints::new(own, &messages, "targets")).transpose()?;
        Ok(Cloud::Ranks(Box::new(OfRanks { sources, targets, gathered: Arc::default() }), host))
    }

    /// Checks points, and leaves them on the host.
    ///
    /// # Errors
    /// [`Error::NotFinite`].
    pub fn host(facts: &Facts, sources: &'a [f64], targets: Targets<'a>) -> Result<Self, Error> {
        validate::finite("sources", sources, facts.dim)?;
        if let Targets::Points(t) = targets {
            validate::finite("targets", t, facts.dim)?;
        }
        Ok(Cloud::Host(sources, targets, Arc::default()))
    }

    /// The extent of the points: see [`validate::extent`].
    pub fn extent(&self, dim: usize) -> Result<f64, Error> {
        match self {
            Cloud::Host(sources, targets, _) => {
                let others = if let Targets::Points(t) = targets { t } else { &[][..] };
                validate::extent(validate::bounds(sources, dim).into_iter().chain(validate::bounds(others, dim)), dim)
            }
            Cloud::Device(there) => {
                let others = there.targets.points().map(|points| points.bounds());
                validate::extent([there.sources.bounds()].into_iter().chain(others), dim)
            }
            Cloud::Ranks(all, _) => validate::extent([all.sources.bounds(), all.targets().bounds()].into_iter(), dim),
        }
    }

    /// The points on the host; of several ranks, those of this rank.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for points on a device.
    pub fn on_host(&self) -> Result<(&'a [f64], Targets<'a>), Error> {
        match self {
            Cloud::Host(sources, targets, _) => Ok((sources, *targets)),
            Cloud::Ranks(_, Some(points)) => Ok(*points),
            Cloud::Device(_) | Cloud::Ranks(..) => {
                let reason = "the points are on a device".to_string();
                Err(Error::Unsupported { operation: "a sum on a CPU", reason })
            }
        }
    }

    /// The trees that candidates have left on the host.
    pub fn sites(&self) -> Option<&Arc<Sites>> {
        if let Cloud::Host(_, _, sites) = self { Some(sites) } else { None }
    }

    /// The points on a device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for points on the host.
    pub fn on_device(&self) -> Result<&There, Error> {
        match self {
            Cloud::Device(there) => Ok(there),
            Cloud::Host(..) | Cloud::Ranks(..) => {
                let reason = "the points are not on this device alone".to_string();
                Err(Error::Unsupported { operation: "a sum on a device", reason })
            }
        }
    }

    /// The points of several ranks on their devices.
    pub fn on_ranks(&self) -> Option<&OfRanks> {
        if let Cloud::Ranks(all, _) = self { Some(all) } else { None }
    }
}
