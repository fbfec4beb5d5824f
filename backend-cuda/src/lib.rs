//! Stages of the method on an NVIDIA GPU, compiled at run time for the device present.
//!
//! [`Device`] opens a GPU or says what is missing. The crate needs no CUDA to build or to start. [`Program`] is a
//! source of `kernels/` with its options, compiled by NVRTC and cached under a full fingerprint. [`Direct`] sums all
//! pairs of any kernel. [`build`] and [`uvwx`] make the tree and the lists of `fmm_tree` on the device, equal array by
//! array.
//!
//! Sums are taken in a fixed order, without atomics on floating-point numbers: a plan gives equal bits for equal
//! input. (One exception: if the spectra of M2L do not fit into memory, they are summed in parts, and the number of
//! parts depends on the free memory.)

mod arrange;
mod array;
mod base;
mod builder;
mod cache;
mod ceilings;
mod compile;
mod cut;
mod deep;
mod device;
mod direct;
mod domains;
mod draw;
mod ends;
mod equivalent;
mod error;
mod evaluation;
mod far;
mod graph;
mod joint;
mod levels;
mod link;
mod lists;
mod near_alone;
mod pieces;
mod pinned;
mod placed;
mod plan;
mod plane;
mod points;
mod pool;
mod primitives;
mod products;
mod programs;
mod ranks;
mod rounds;
mod run;
mod settings;
mod shares;
mod solver;
mod spherical;
mod split;
mod strengths;
mod tasks;
mod thin;
mod transfer;
mod tree;

pub use array::{DeviceArray, DeviceStream, RawArray};
pub use builder::{Root, TreeOptions, build, build_reported};
pub use ceilings::Ceilings;
pub use compile::{Compiled, Program, compile};
pub use cudarc;
pub use cut::Cut;
pub use device::{Device, DeviceInfo, DeviceOptions};
pub use direct::{DeviceTargets, Direct, Shape};
pub use draw::{Class, LeafFields, NearAndClose, Numbers, PointWeights, Row, Shares};
pub use equivalent::DeviceScalar;
pub use joint::JointPoints;
pub use lists::{Acceptance, DeviceEdges, DeviceLists, near_pairs, stencil119, treecode, uvwx};
pub use near_alone::NearOnDevice;
pub use placed::{Counts, Ground, Placed, PlanSeconds};
pub use plan::Plan;
pub use plane::{
    DevicePyramid, PlaneCounts, PlaneLists, PlanePlaced, PlanePlan, PlaneSettings, PlaneSolver, plane_build,
    plane_connect, plane_p2p_program, plane_series_program, plane_solver, plane_sums,
};
pub use points::CallerPoints;
pub use programs::{
    RcrShape, all_programs, dft_program, direct_program, l2p_harmonics_program, l2p_program, m2l_fourier_program,
    m2l_program, m2p_polynomials_program, multiply_program, operators_program, p2m_harmonics_program, p2m_program,
    p2p_program, rcr_program,
};
pub use rounds::Routes;
pub use settings::{Expansion, Settings};
pub use shares::{Share, Sharing, Works};
pub use solver::{DeviceMethod, DeviceSolver, DeviceSums, method, solver};
pub use spherical::{SphericalSettings, Translation, UnrolledShape, rcr_unrolled_program};
pub use strengths::StrengthSets;
pub use tree::{DevicePoints, DeviceTree};
