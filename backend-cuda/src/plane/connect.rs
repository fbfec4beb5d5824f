//! Edge lists of the pyramid by the θ-criterion on the device, equal to those of [`adaptive2d::connect()`]:
//! `kernels/plane_connect.cu`.

use super::pyramid::{DevicePyramid, WARP_BLOCK, WARPS};
use crate::device::{Arg, Buffer, Device, Functions, blocks};
use crate::primitives::Primitives;
use adaptive2d::connect::completed;
use adaptive2d::pyramid::level_start;
use adaptive2d::{ConnectOptions, Pyramid};
use fmm_traits::{Edges, Error, Lists};

/// Largest number of boxes of a level for which the strong couplings get room for all pairs. Deeper levels are counted
/// first, which waits for the device.
const MAX_BOXES_UNCOUNTED: usize = 1024;

/// Rows of edges in device memory.
#[derive(Debug)]
pub(super) struct Rows {
    /// First edge of each row, and the number of edges.
    pub starts: Buffer<u64>,
    /// The source box of each edge.
    pub sources: Buffer<u32>,
    pub edges: usize,
}

impl Rows {
    fn upload(device: &Device, starts: &[usize], sources: &[u32]) -> Result<Rows, Error> {
        let starts: Vec<u64> = starts.iter().map(|&s| s as u64).collect();
        let (starts, to) = (device.upload(&starts, "edges")?, device.upload(sources, "edges")?);
        Ok(Rows { starts, sources: to, edges: sources.len() })
    }
    /// The edges on the host, with `empty` empty rows in front.
    fn download(&self, device: &Device, empty: usize) -> Result<Edges, Error> {
        let starts = device.download(&self.starts, "edges")?.into_iter().map(|s| s as usize);
        let starts = std::iter::repeat_n(0, empty).chain(starts).collect();
        Ok(Edges { starts, sources: device.download_range(&self.sources, 0..self.edges, "edges")? })
    }
    fn bytes(&self) -> u64 {
        self.starts.bytes() + self.sources.bytes()
    }
}

/// Edge lists in device memory. The lists along the tree (P2M, M2M, L2L, L2P) follow from the pyramid.
#[derive(Debug)]
pub struct PlaneLists {
    /// A row for each box.
    pub(super) m2l: Rows,
    /// A row for each leaf.
    pub(super) p2l: Rows,
    /// A row for each leaf.
    pub(super) m2p: Rows,
    /// A row for each leaf.
    pub(super) p2p: Rows,
    /// First level with M2L or P2L edges; the number of levels if there are none.
    pub(super) first_level: usize,
    /// Pairs of points of P2P.
    near_pairs: u64,
}

/// The device structure of `shared/pyramid.cuh`.
pub(super) fn described(p: &DevicePyramid, least_relative: f64) -> Result<Buffer<u64>, Error> {
    let least = if p.radius() > 0.0 { p.radius() * least_relative } else { 1.0 };
    let numbers = [
        p.center.address(),
        p.radius.address(),
        p.source_start.address(),
        p.target_start.address(),
        p.depth as u64 | (p.len() as u64) << 32,
        least.to_bits(),
    ];
    p.device.upload(&numbers, "description of a pyramid")
}

/// The edge lists of `pyramid` under the θ-criterion.
///
/// # Errors
/// [`Error::Parameter`] when θ is outside (0, 1), and errors of the device.
pub fn plane_connect(pyramid: &DevicePyramid, options: &ConnectOptions) -> Result<PlaneLists, Error> {
    options.check()?;
    let device = &pyramid.device;
    let functions = device.fixed("plane_connect", super::connect_program)?;
    let described = described(pyramid, 0.0)?;
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
type Strong = (Buffer<u64>, Buffer<u32>);

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
        let mut strong: Vec<Strong> = vec![(device.alloc(2, "edges")?, device.alloc(1, "edges")?)];
        let args = [(&self.described).into(), (&strong[0].0).into(), (&strong[0].1).into()];
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
        let counts: Buffer<u32> = device.alloc(count, "counts of edges")?;
        let starts: Buffer<u64> = device.alloc(count + 1, "edges")?;
        let given = [(level as u32).into(), (&above.0).into(), (&above.1).into()];
        // SAFETY: arguments as in plane_connect.cu; counts and starts have a row for each box.
        unsafe {
            let args = [given[0], given[1], given[2], (&*weak).into(), (&counts).into()];
            self.launch("plane_couple_count", count, &args)?;
        }
        self.primitives.scan([(&counts, &starts)], count)?;
        let room = match count <= MAX_BOXES_UNCOUNTED {
            true => count * count,
            false => device.download_range(&starts, count..count + 1, "counts of edges")?[0] as usize,
        };
        let strong = device.alloc(room, "edges")?;
        // SAFETY: as above; there is room for all couplings.
        unsafe {
            let args = [given[0], given[1], given[2], (&starts).into(), (&strong).into()];
            self.launch("plane_strong_fill", count, &args)?;
        }
        Ok((starts, strong))
    }

    /// The edges, from the strong couplings of all levels and the counts of weak couplings.
    fn rows(&self, strong: Vec<Strong>, weak: Buffer<u32>) -> Result<PlaneLists, Error> {
        let (p, o, device) = (self.pyramid, self.options, &self.pyramid.device);
        let (boxes, depth, leaves) = (p.len(), p.depth, p.leaves());
        let limit = |n: usize| -> Arg { u32::try_from(n).unwrap_or(u32::MAX).into() };
        let (finest, limits) = (&strong[depth], [limit(o.m2p_min_sources), limit(o.p2l_min_targets)]);
        let counts: [Buffer<u32>; 3] = three(|_| device.alloc(leaves, "counts of edges"))?;
        let given = [limits[0], limits[1], (&finest.0).into(), (&finest.1).into()];
        let args: Vec<Arg> = given.into_iter().chain(counts.iter().map(Arg::from)).collect();
        // SAFETY: arguments as in plane_connect.cu; counts have a row for each leaf.
        unsafe { self.launch("plane_finest_count", leaves, &args)? };
        let m2l_starts: Buffer<u64> = device.alloc(boxes + 1, "edges")?;
        self.primitives.scan([(&weak, &m2l_starts)], boxes)?;
        let starts: [Buffer<u64>; 3] = three(|_| device.alloc(leaves + 1, "edges"))?;
        self.primitives.scan([0, 1, 2].map(|k| (&counts[k], &starts[k])), leaves)?;
        // The numbers of edges, and of M2L edges above each level.
        let mut wanted: Vec<(&Buffer<u64>, usize)> = starts.iter().map(|s| (s, leaves)).collect();
        wanted.extend((0..=depth + 1).map(|level| (&m2l_starts, level_start(level))));
        let totals = device.entries(&wanted, "counts of edges")?;
        let (near, far) = totals.split_at(3);
        let m2l = device.alloc(far[depth + 1] as usize, "edges")?;
        let edges: [Buffer<u32>; 3] = three(|k| device.alloc(near[k] as usize, "edges"))?;
        // SAFETY: as above; there is room for all edges.
        unsafe {
            for level in (1..=depth).filter(|&l| far[l + 1] > far[l]) {
                let (above, rows) = (&strong[level - 1], level_start(level + 1) - level_start(level));
                let args =
                    [(level as u32).into(), (&above.0).into(), (&above.1).into(), (&m2l_starts).into(), (&m2l).into()];
                self.launch("plane_weak_fill", rows, &args)?;
            }
            let to = starts.iter().zip(&edges).flat_map(|(s, e)| [Arg::from(s), Arg::from(e)]);
            self.launch("plane_finest_fill", leaves, &given.into_iter().chain(to).collect::<Vec<_>>())?;
        }
        let pairs: Buffer<u64> = device.zeros(1, "pairs")?;
        let args = [(&self.described).into(), (&starts[0]).into(), (&edges[0]).into(), (&pairs).into()];
        // SAFETY: as above.
        unsafe { device.launch(&self.functions, "plane_near_pairs", (blocks(leaves, WARPS)?, 1), WARP_BLOCK, &args)? };
        let first = (0..=depth).find(|&l| far[l + 1] > 0).unwrap_or(depth + 1);
        let first_level = if near[1] > 0 { first.min(depth) } else { first };
        let near_pairs = device.download(&pairs, "pairs")?[0];
        let rows = |starts, sources, edges: u64| Rows { starts, sources, edges: edges as usize };
        let [p2p_starts, p2l_starts, m2p_starts] = starts;
        let [p2p, p2l, m2p] = edges;
        Ok(PlaneLists {
            m2l: rows(m2l_starts, m2l, far[depth + 1]),
            p2p: rows(p2p_starts, p2p, near[0]),
            p2l: rows(p2l_starts, p2l, near[1]),
            m2p: rows(m2p_starts, m2p, near[2]),
            first_level,
            near_pairs,
        })
    }
}

/// Three arrays, of the lists P2P, P2L and M2P.
fn three<T>(make: impl Fn(usize) -> Result<T, Error>) -> Result<[T; 3], Error> {
    Ok([make(0)?, make(1)?, make(2)?])
}

impl PlaneLists {
    /// Numbers of M2L, P2L, M2P and P2P edges.
    pub fn edges(&self) -> [usize; 4] {
        [&self.m2l, &self.p2l, &self.m2p, &self.p2p].map(|rows| rows.edges)
    }
    /// Pairs of points of the P2P edges.
    pub fn near_pairs(&self) -> u64 {
        self.near_pairs
    }
    /// Bytes of device memory held.
    pub fn bytes(&self) -> u64 {
        [&self.m2l, &self.p2l, &self.m2p, &self.p2p].map(Rows::bytes).iter().sum()
    }
    /// A copy on the host. `pyramid` is a copy of the pyramid of these lists.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn download(&self, device: &Device, pyramid: &Pyramid) -> Result<Lists, Error> {
        let first = level_start(pyramid.depth());
        let of_leaves = |rows: &Rows| rows.download(device, first);
        let (p2l, m2p, p2p) = (of_leaves(&self.p2l)?, of_leaves(&self.m2p)?, of_leaves(&self.p2p)?);
        Ok(completed(pyramid, self.m2l.download(device, 0)?, p2l, m2p, p2p))
    }
    /// A copy of the lists of a pyramid on the host.
    ///
    /// # Errors
    /// [`Error::Shape`] if the lists are not those of a pyramid with so many boxes, and errors of the device.
    pub fn upload(device: &Device, pyramid: &Pyramid, lists: &Lists) -> Result<PlaneLists, Error> {
        let (boxes, depth) = (pyramid.len(), pyramid.depth());
        let first = level_start(depth);
        for (_, edges) in lists.kinds() {
            if edges.starts.len() != boxes + 1 || edges.sources.iter().any(|&s| s as usize >= boxes) {
                let why = "rows of the boxes of the pyramid".to_string();
                return Err(Error::Shape { array: "lists", found: edges.starts.len(), expected: boxes + 1, why });
            }
        }
        let of_leaves = |edges: &Edges| {
            let inner = edges.starts[first];
            match inner == 0 && edges.sources.iter().all(|&s| s as usize >= first) {
                true => Rows::upload(device, &edges.starts[first..], &edges.sources),
                false => {
                    let why = "edges between leaves".to_string();
                    Err(Error::Shape { array: "lists", found: inner, expected: 0, why })
                }
            }
        };
        let near = |(t, s): (u32, u32)| {
            pyramid.targets_of(t as usize).len() as u64 * pyramid.sources_of(s as usize).len() as u64
        };
        let lowest = if lists.p2l.is_empty() { depth + 1 } else { depth };
        let m2l = (0..=depth).find(|&l| lists.m2l.starts[level_start(l + 1)] > 0).unwrap_or(depth + 1);
        Ok(PlaneLists {
            m2l: Rows::upload(device, &lists.m2l.starts, &lists.m2l.sources)?,
            p2l: of_leaves(&lists.p2l)?,
            m2p: of_leaves(&lists.m2p)?,
            p2p: of_leaves(&lists.p2p)?,
            first_level: m2l.min(lowest),
            near_pairs: lists.p2p.iter().map(near).sum(),
        })
    }
}
