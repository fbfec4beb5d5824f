//! Edge lists of the pyramid by the θ-criterion on the device, equal to those of [`adaptive2d::connect()`]:
//! `kernels/plane_connect.cu`.

use super::pyramid::{DevicePyramid, WARP_BLOCK, WARPS};
use crate::cut::Cut;
use crate::device::{Arg, Buffer, Device, Functions, blocks};
use crate::lists::{DeviceEdges, each, filled};
use crate::primitives::Primitives;
use adaptive2d::connect::completed;
use adaptive2d::pyramid::level_start;
use adaptive2d::{ConnectOptions, Pyramid};
use fmm_traits::{Error, Lists};

/// Largest number of boxes of a level for which the strong couplings get room for all pairs, so that they are filled at
/// once. Those of deeper levels are counted first, which takes three more launches and waits for the device.
const MAX_BOXES_UNCOUNTED: usize = 1024;

/// Edge lists in device memory, a row for each box. The lists along the tree (P2M, M2M, L2L, L2P) follow from the
/// pyramid.
#[derive(Debug)]
pub struct PlaneLists {
    pub(crate) m2l: DeviceEdges,
    pub(crate) p2l: DeviceEdges,
    pub(crate) m2p: DeviceEdges,
    pub(crate) p2p: DeviceEdges,
    /// First leaf. Only rows of leaves have P2L, M2P and P2P edges.
    first_leaf: usize,
    /// First level with M2L or P2L edges; the number of levels if there are none.
    pub(super) first_level: usize,
    /// Pairs of points of P2P.
    near_pairs: u64,
}

/// The edge lists of `pyramid` under the θ-criterion.
///
/// # Errors
/// [`Error::Parameter`] when θ is outside (0, 1), and errors of the device.
pub fn plane_connect(pyramid: &DevicePyramid, options: &ConnectOptions) -> Result<PlaneLists, Error> {
    options.check()?;
    let device = &pyramid.device;
    let functions = device.fixed("plane_connect", super::connect_program)?;
    let described = pyramid.described(0.0)?;
    Maker { pyramid, options, functions, described, primitives: Primitives::new(device)? }.lists()
}

/// What the steps of connecting share.
struct Maker<'a> {
    pyramid: &'a DevicePyramid,
    options: &'a ConnectOptions,
    functions: Functions,
    described: Buffer<u64>,
    primitives: Primitives,
}

/// Strong couplings of a level, a row for each box.
struct Strong {
    starts: Buffer<u64>,
    /// Where rows end; `None`: where the next row starts.
    ends: Option<Buffer<u64>>,
    boxes: Buffer<u32>,
}

impl Strong {
    /// As `Strong` in `plane_connect.cu`.
    fn addresses(&self) -> [u64; 3] {
        let starts = self.starts.address();
        let ends = self.ends.as_ref().map_or(starts + size_of::<u64>() as u64, Buffer::address);
        [starts, ends, self.boxes.address()]
    }
    /// Where rows start and end, and the couplings.
    fn args(&self) -> [Arg; 3] {
        [(&self.starts).into(), self.ends.as_ref().map_or(self.starts.at(1), Arg::from), (&self.boxes).into()]
    }
}

impl Maker<'_> {
    /// Launches one warp for each of `rows` rows. The first arguments are the pyramid and θ.
    unsafe fn launch(&self, entry: &'static str, rows: usize, args: &[Arg]) -> Result<(), Error> {
        let own = [(&self.described).into(), self.options.theta.into()];
        let args: Vec<Arg> = own.iter().chain(args).copied().collect();
        let (device, grid) = (&self.pyramid.device, (blocks(rows, WARPS)?, 1));
        // SAFETY: the caller's promise.
        unsafe { device.launch(&self.functions, entry, grid, WARP_BLOCK, &args) }
    }

    fn lists(&self) -> Result<PlaneLists, Error> {
        let (p, device) = (self.pyramid, &self.pyramid.device);
        let (boxes, depth) = (p.len(), p.depth);
        let mut weak: Buffer<u32> = device.zeros(boxes, "counts of edges")?;
        let root = Strong { starts: device.alloc(2, "edges")?, ends: None, boxes: device.alloc(1, "edges")? };
        let mut strong = vec![root];
        let [starts, ends, root] = strong[0].args();
        let args = [(&self.described).into(), starts, ends, root];
        // SAFETY: arguments as in plane_connect.cu.
        unsafe { device.launch(&self.functions, "plane_root", (1, 1), 1, &args)? };
        for level in 1..=depth {
            let next = self.level(level, &strong[level - 1], &mut weak)?;
            strong.push(next);
        }
        self.rows(strong, weak)
    }

    /// The strong couplings of a level. Counts the weak couplings.
    fn level(&self, level: usize, above: &Strong, weak: &mut Buffer<u32>) -> Result<Strong, Error> {
        let device = &self.pyramid.device;
        let count = level_start(level + 1) - level_start(level);
        let given = [&[(level as u32).into()][..], &above.args()].concat();
        let with = |more: &[Arg]| [&given[..], more].concat();
        let starts: Buffer<u64> = device.alloc(count + 1, "edges")?;
        if count <= MAX_BOXES_UNCOUNTED {
            let (ends, boxes) = (device.alloc(count, "edges")?, device.alloc(count * count, "edges")?);
            let args = with(&[(&*weak).into(), (&starts).into(), (&ends).into(), (&boxes).into()]);
            // SAFETY: arguments as in plane_connect.cu; each row has room for all boxes of the level.
            unsafe { self.launch("plane_couple", count, &args)? };
            return Ok(Strong { starts, ends: Some(ends), boxes });
        }
        let counts: Buffer<u32> = device.alloc(count, "counts of edges")?;
        // SAFETY: as above; counts have a row for each box.
        unsafe { self.launch("plane_couple_count", count, &with(&[(&*weak).into(), (&counts).into()]))? };
        self.primitives.scan([(&counts, &starts)], count)?;
        let room = device.download_range(&starts, count..count + 1, "counts of edges")?[0] as usize;
        let boxes = device.alloc(room, "edges")?;
        // SAFETY: as above; there is room for all couplings.
        unsafe { self.launch("plane_strong_fill", count, &with(&[(&starts).into(), (&boxes).into()]))? };
        Ok(Strong { starts, ends: None, boxes })
    }

    /// The edges, from the strong couplings of all levels and the counts of weak couplings.
    fn rows(&self, strong: Vec<Strong>, weak: Buffer<u32>) -> Result<PlaneLists, Error> {
        let (p, o, device) = (self.pyramid, self.options, &self.pyramid.device);
        let (boxes, depth, leaves, first) = (p.len(), p.depth, p.leaves(), level_start(p.depth));
        let limit = |n: usize| -> Arg { u32::try_from(n).unwrap_or(u32::MAX).into() };
        let (finest, limits) = (&strong[depth], [limit(o.m2p_min_sources), limit(o.p2l_min_targets)]);
        let zeros = || device.zeros::<u32>(boxes, "counts of edges");
        let counts = [weak, zeros()?, zeros()?, zeros()?];
        let given = [&limits[..], &finest.args()].concat();
        let args: Vec<Arg> = given.iter().copied().chain(counts[1..].iter().map(|c| c.at(first))).collect();
        // SAFETY: arguments as in plane_connect.cu; counts have a row for each leaf.
        unsafe { self.launch("plane_finest_count", leaves, &args)? };
        let levels: Vec<u64> = strong[..depth].iter().flat_map(Strong::addresses).collect();
        let levels = device.upload(&levels, "edges")?;
        let [m2l, p2p, p2l, m2p] = filled(device, &self.primitives, boxes, &counts, |[m2l, of_leaves @ ..]| {
            let to = of_leaves.iter().flat_map(|e| [e.starts.at(first), (&e.sources).into()]);
            let to_leaves: Vec<Arg> = given.iter().copied().chain(to).collect();
            // SAFETY: as above; there is room for all edges.
            unsafe {
                self.launch(
                    "plane_weak_fill",
                    boxes,
                    &[(&levels).into(), (&m2l.starts).into(), (&m2l.sources).into()],
                )?;
                self.launch("plane_finest_fill", leaves, &to_leaves)
            }
        })?;
        let pairs = Cut::of_pyramid(p, [&m2l, &p2l, &m2p, &p2p])?.near_pairs()?;
        // M2L edges above each level, and pairs.
        let mut wanted: Vec<(&Buffer<u64>, usize)> = (0..=depth + 1).map(|l| (&m2l.starts, level_start(l))).collect();
        wanted.push((&pairs, 0));
        let found = device.entries(&wanted, "counts of edges")?;
        let first_level = (0..=depth).find(|&l| found[l + 1] > 0).unwrap_or(depth + 1);
        let first_level = if p2l.is_empty() { first_level } else { first_level.min(depth) };
        Ok(PlaneLists { m2l, p2l, m2p, p2p, first_leaf: first, first_level, near_pairs: found[depth + 2] })
    }
}

impl PlaneLists {
    fn across(&self) -> [&DeviceEdges; 4] {
        [&self.m2l, &self.p2l, &self.m2p, &self.p2p]
    }
    /// The starts of the rows of the leaves, for a kernel.
    pub(super) fn of_leaves(&self, edges: &DeviceEdges) -> Arg {
        edges.starts.at(self.first_leaf)
    }
    /// Numbers of M2L, P2L, M2P and P2P edges.
    pub fn edges(&self) -> [usize; 4] {
        self.across().map(DeviceEdges::len)
    }
    /// Pairs of points of the P2P edges.
    pub fn near_pairs(&self) -> u64 {
        self.near_pairs
    }
    /// Bytes of device memory held.
    pub fn bytes(&self) -> u64 {
        self.across().map(DeviceEdges::bytes).iter().sum()
    }
    /// Access to the pyramid of these lists and to the lists, for a probe.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn cut<'a>(&'a self, pyramid: &'a DevicePyramid) -> Result<Cut<'a>, Error> {
        Cut::of_pyramid(pyramid, self.across())
    }
    /// A copy on the host. `pyramid` is a copy of the pyramid of these lists; its points may be missing.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn download(&self, device: &Device, pyramid: &Pyramid) -> Result<Lists, Error> {
        let [m2l, p2l, m2p, p2p] = each(|k| self.across()[k].download(device))?;
        Ok(completed(pyramid, m2l, p2l, m2p, p2p))
    }
    /// A copy of the lists of a pyramid on the host.
    ///
    /// # Errors
    /// [`Error::Shape`] if the lists are not those of a pyramid with so many boxes, and errors of the device.
    pub fn upload(device: &Device, pyramid: &Pyramid, lists: &Lists) -> Result<PlaneLists, Error> {
        let (boxes, depth, first) = (pyramid.len(), pyramid.depth(), level_start(pyramid.depth()));
        for (_, edges) in lists.kinds() {
            if edges.starts.len() != boxes + 1 || edges.sources.iter().any(|&s| s as usize >= boxes) {
                let why = "rows of the boxes of the pyramid".to_string();
                return Err(Error::Shape { array: "lists", found: edges.starts.len(), expected: boxes + 1, why });
            }
        }
        for edges in [&lists.p2l, &lists.m2p, &lists.p2p] {
            let inner = edges.starts[first];
            if inner > 0 || edges.sources.iter().any(|&s| (s as usize) < first) {
                let why = "edges between leaves".to_string();
                return Err(Error::Shape { array: "lists", found: inner, expected: 0, why });
            }
        }
        let near = |(t, s): (u32, u32)| {
            pyramid.targets_of(t as usize).len() as u64 * pyramid.sources_of(s as usize).len() as u64
        };
        let lowest = if lists.p2l.is_empty() { depth + 1 } else { depth };
        let m2l = (0..=depth).find(|&l| lists.m2l.starts[level_start(l + 1)] > 0).unwrap_or(depth + 1);
        Ok(PlaneLists {
            m2l: DeviceEdges::upload(device, &lists.m2l)?,
            p2l: DeviceEdges::upload(device, &lists.p2l)?,
            m2p: DeviceEdges::upload(device, &lists.m2p)?,
            p2p: DeviceEdges::upload(device, &lists.p2p)?,
            first_leaf: first,
            first_level: m2l.min(lowest),
            near_pairs: lists.p2p.iter().map(near).sum(),
        })
    }
}
