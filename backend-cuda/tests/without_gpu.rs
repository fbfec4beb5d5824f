//! What can be tested without a GPU: every program compiles for sm_90 (with the library that
//! `scripts/nvrtc.sh` fetches; FMM_NVRTC may name another folder), and what is missing is an error.

use adaptive2d::PlaneKernel;
use backend_cuda::{
    Compiled, Device, DeviceOptions, Program, RcrShape, Shape, UnrolledShape, all_programs, compile, dft_program,
    direct_program, l2p_harmonics_program, l2p_program, m2p_polynomials_program, operators_program,
    p2m_harmonics_program, p2m_program, p2p_program, plane_p2p_program, plane_series_program, rcr_program,
    rcr_unrolled_program,
};
// Its code for each kernel is linked, and not compiled again.
use fmm_families as _;
use fmm_kernels::equivalent::{Fill, Lattice};
use fmm_kernels::{
    Gravity, Harmonic2d, Laplace, Laplace2dMixed, LaplaceDipole, LaplaceMixed, Stokes, StokesPressure, Stresslet,
    Yukawa,
};
use fmm_traits::lane::dot;
use fmm_traits::testkit::in_turn;
use fmm_traits::{Error, Family, Gradient, Hessian, Kernel, Kernels, Lane, Member, Outputs, Real, Traced};
use libloading::Library;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Once;

/// Opens the compiler that the script fetched, if there is one: `compile` then finds it by name.
fn preload() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let folder = std::env::var_os("FMM_NVRTC").map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/nvrtc/nvidia/cu13/lib"),
            PathBuf::from,
        );
        for name in ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"] {
            // SAFETY: NVIDIA's libraries have no initialisers beyond their own state.
            if let Ok(library) = unsafe { Library::new(folder.join(name)) } {
                std::mem::forget(library);
            }
        }
    });
}

fn for_sm_90(program: &Program) -> Result<Compiled, Error> {
    preload();
    compile(program, (9, 0))
}

/// Programs by name; members that several families share appear once.
#[derive(Default)]
struct Programs(BTreeMap<String, Program>);

impl Programs {
    /// Calls `work` with one name and program in `parts` ([`in_turn`]). Two threads share the work of the compiler.
    fn one_in(&self, parts: usize, work: impl Fn(&str, &Program) + Sync) {
        let (all, work) = (&self.0.iter().enumerate().filter(|(k, _)| in_turn(*k, parts)).collect::<Vec<_>>(), &work);
        let files = |names: &mut dyn Iterator<Item = &String>| -> BTreeSet<String> {
            names.filter_map(|name| name.split(' ').next()).map(str::to_string).collect()
        };
        assert_eq!(
            files(&mut all.iter().map(|(_, (name, _))| *name)),
            files(&mut self.0.keys()),
            "every file has a turn"
        );
        std::thread::scope(|scope| {
            for first in 0..2 {
                scope.spawn(move || {
                    all.iter().skip(first).step_by(2).for_each(|(_, (name, program))| work(name, program))
                });
            }
        });
    }
    fn add(&mut self, program: Program) {
        self.0.insert(program.name.clone(), program);
    }
    /// What sums the kernels, in both precisions.
    fn kernels(&mut self, kernels: &Kernels) {
        let Kernels { near, far, members, .. } = kernels;
        self.add(direct_program::<f32>(near, Shape::tuned::<f32>(near.values)));
        self.add(direct_program::<f64>(near, Shape::tuned::<f64>(near.values)));
        self.add(p2p_program::<f32>(near));
        self.add(p2p_program::<f64>(near));
        self.add(p2m_program::<f32>(&members.check, 152));
        self.add(p2m_program::<f64>(&members.check, 152));
        self.add(p2m_program::<f64>(&members.check, 1728));
        let lattice = Lattice { order: 6, fill: Fill::Surface, dim: members.equivalent.dim };
        self.add(operators_program::<f32>(&members.equivalent, lattice));
        self.add(operators_program::<f64>(&members.equivalent, lattice));
        self.add(l2p_program::<f32>(far));
        self.add(l2p_program::<f64>(far));
    }
    fn family<F: Family>(&mut self, family: &F) {
        for outputs in [Outputs::POTENTIAL, Outputs::GRADIENT, Outputs::HESSIAN] {
            for outputs in [outputs, outputs | Outputs::PRESSURE] {
                if family.outputs().contains(outputs) {
                    self.kernels(&Kernels::of(family, outputs).expect("an output that the family has"));
                }
            }
        }
    }
}

/// Bytes of registers that the entries of a program store in memory, at most.
fn spilled(log: &str) -> usize {
    let bytes = |line: &str| line.split(" bytes spill stores").next()?.split(' ').next_back()?.parse().ok();
    log.lines().filter(|l| l.contains("spill stores")).filter_map(bytes).max().unwrap_or(usize::MAX)
}

#[test]
fn every_program_compiles_for_sm_90() {
    for program in all_programs() {
        let Compiled { cubin, log } = for_sm_90(&program).unwrap_or_else(|e| panic!("{e}"));
        assert!(!cubin.is_empty(), "{}: no binary", program.name);
        assert_eq!(spilled(&log), 0, "{} spills registers:\n{log}", program.name);
        assert!(!log.contains("warning"), "{}:\n{log}", program.name);
        for entry in program.entries {
            assert!(log.contains(&format!("'{entry}'")), "{} has no entry {entry}:\n{log}", program.name);
        }
    }
}

#[test]
fn the_transforms_of_every_order_compile_for_sm_90() {
    let in_space = (3..=16).map(Lattice::surface).chain((3..=12).map(Lattice::volume));
    let in_plane = [3, 6, 11, 16].into_iter().flat_map(|p| [Lattice::surface(p), Lattice::volume(p)]);
    let lattices = in_space.chain(in_plane.map(Lattice::in_plane));
    let programs = lattices.flat_map(|of| [(of, dft_program::<f32>(of)), (of, dft_program::<f64>(of))]);
    // One in five: both precisions in turn, and the largest volume in f64.
    for (_, (lattice, program)) in programs.enumerate().filter(|(k, _)| in_turn(k + 3, 5)) {
        let log = for_sm_90(&program).unwrap_or_else(|e| panic!("{e}")).log;
        // A few numbers are spilled outside the sums.
        let most = if lattice == Lattice::volume(12) { 256 } else { 96 };
        assert!(spilled(&log) <= most, "{} spills registers:\n{log}", program.name);
    }
}

#[test]
fn stages_of_harmonics_compile_for_sm_90() {
    let sources = [(1, 12), (4, 41)];
    let sources =
        sources.map(|(k, order)| [p2m_harmonics_program::<f32>(k, order), p2m_harmonics_program::<f64>(k, order)]);
    let targets = [(1, 1), (4, 8), (4, 40), (10, 12)];
    let targets = targets.map(|(k, p)| {
        [false, true].map(|m2p| [l2p_harmonics_program::<f32>(k, p, m2p), l2p_harmonics_program::<f64>(k, p, m2p)])
    });
    let polynomials = [(1, 8), (4, 10)];
    let polynomials =
        polynomials.map(|(k, p)| [m2p_polynomials_program::<f32>(k, p), m2p_polynomials_program::<f64>(k, p)]);
    let programs = sources.iter().chain(targets.iter().flatten()).chain(&polynomials).flatten();
    // One in three: both precisions in turn.
    for (_, program) in programs.enumerate().filter(|(k, _)| in_turn(*k, 3)) {
        let log = for_sm_90(program).unwrap_or_else(|e| panic!("{e}")).log;
        // M2P of four values in f64 is faster with more blocks at a time, though some numbers are then spilled.
        let allowed = if program.source.contains("SINGULAR 1") && program.name.contains("f64") { 320 } else { 64 };
        assert!(spilled(&log) <= allowed, "{} spills registers:\n{log}", program.name);
        assert!(!log.contains("warning"), "{}:\n{log}", program.name);
    }
}

/// Shared memory of a block of compute capability 9.0.
const BLOCK_MEMORY: usize = 227 << 10;

#[test]
fn stages_of_the_plane_compile_for_sm_90() {
    let mut programs = Programs::default();
    for kernel in PlaneKernel::all() {
        for derivatives in 0..3 {
            programs.add(plane_p2p_program::<f32>(kernel, derivatives));
            programs.add(plane_p2p_program::<f64>(kernel, derivatives));
        }
        programs.add(plane_series_program::<f32>(kernel, 2, 12));
    }
    programs.add(plane_series_program::<f64>(Harmonic2d.into(), 0, 20));
    programs.add(plane_series_program::<f64>(Laplace2dMixed.into(), 1, 1));
    // The twelve P2P programs in f32 come before the twelve in f64, and behind them four of series in f32 and two in f64.
    programs.one_in(9, |name, program| {
        let log = for_sm_90(program).unwrap().log;
        // A number or two is spilled outside the loops.
        assert!(spilled(&log) <= 8, "{name} spills registers:\n{log}");
    });
}

#[test]
fn rotations_compile_for_sm_90() {
    fn of<T: Real>(order: usize) -> Program {
        rcr_program::<T>(order, RcrShape::of::<T>(order, BLOCK_MEMORY))
    }
    let programs = [1, 4, 8, 13, 20, 40].into_iter().flat_map(|order| [of::<f32>(order), of::<f64>(order)]);
    // One in three: both precisions in turn, and the largest order in f64.
    for (_, program) in programs.enumerate().filter(|(k, _)| in_turn(k + 1, 3)) {
        let log = for_sm_90(&program).unwrap_or_else(|e| panic!("{e}")).log;
        // Addresses that stay the same from one offset to the next.
        assert!(spilled(&log) <= 96, "{} spills registers:\n{log}", program.name);
        assert!(!log.contains("warning"), "{}:\n{log}", program.name);
    }
}

#[test]
fn unrolled_rotations_compile_for_sm_90() {
    fn of<T: Real>(order: usize) -> Program {
        let shape = UnrolledShape::of::<T>(order, BLOCK_MEMORY).unwrap();
        rcr_unrolled_program::<T>(order, shape)
    }
    for program in [of::<f32>(1), of::<f32>(12), of::<f64>(7), of::<f64>(11)] {
        let log = for_sm_90(&program).unwrap_or_else(|e| panic!("{e}")).log;
        assert!(spilled(&log) <= 160, "{} spills registers:\n{log}", program.name);
        assert!(!log.contains("warning"), "{}:\n{log}", program.name);
    }
    assert!(
        UnrolledShape::of::<f32>(17, BLOCK_MEMORY).is_none() && UnrolledShape::of::<f64>(13, BLOCK_MEMORY).is_none()
    );
    assert!(UnrolledShape::of::<f64>(12, 32 << 10).is_none(), "rows do not fit into so little memory");
}

#[test]
fn every_order_of_rotations_fits_into_shared_memory() {
    fn shape<T: Real>(memory: usize, least: usize) {
        for order in 1..=40 {
            let RcrShape { edges, blocks, bytes } = RcrShape::of::<T>(order, memory);
            let beside = 4 * (217 + edges);
            assert!(edges >= least && blocks > 0, "order {order}: {edges} rows, {blocks} blocks");
            assert!(bytes >= 2 * order * order * (edges + 1) * size_of::<T>() && bytes + beside <= memory);
        }
    }
    shape::<f32>(BLOCK_MEMORY, 8);
    shape::<f64>(BLOCK_MEMORY, 8);
    // Of consumer cards.
    shape::<f64>(99 << 10, 2);
}

#[test]
fn every_stage_of_every_kernel_compiles_for_sm_90() {
    let mut programs = Programs::default();
    programs.family(&Laplace);
    programs.family(&LaplaceDipole);
    programs.family(&LaplaceMixed);
    programs.family(&Yukawa { kappa: 1.0 });
    programs.family(&Gravity { g: 1.0, softening: 0.1 });
    programs.family(&Stokes { mu: 1.0 });
    programs.family(&StokesPressure { mu: 1.0 });
    programs.family(&Stresslet { mu: 1.0 });
    assert!(programs.0.len() >= 2 * 3 * 7 * 3, "{:?}", programs.0.keys());
    // A stage of a kernel has six programs: three numbers of values in two precisions. A step of eleven takes all six in turn.
    programs.one_in(11, compile_without_spilling);
}

/// Compiles a program and checks that few registers spill.
fn compile_without_spilling(name: &str, program: &Program) {
    let log = for_sm_90(program).unwrap_or_else(|e| panic!("{e}\n{}", program.source)).log;
    // A few bytes are spilled outside the pair loop, where registers would cost a block a multiprocessor;
    // and 40 values in f64 are more than there are registers.
    let allowed = match name {
        _ if name.contains("(40 values) in f64") => 1024,
        // Registers are saved around the call that sums close pairs in f64, once for each number of targets per thread.
        _ if name.starts_with("p2p.cu") && name.ends_with("f32") => 1536,
        _ if name.starts_with("p2p.cu") || name.starts_with("l2p.cu") => 256,
        _ => 32,
    };
    assert!(spilled(&log) <= allowed, "{name} spills registers:\n{log}");
}

/// Finite where its distance is 0 and the reciprocal root infinite: the test for 0 must stay.
#[derive(Clone, Debug)]
struct Hides;
impl Kernel for Hides {
    const NAME: &'static str = "hides";
    fn eval<V: Lane>(_: &[V], r: &[V], q: &[V], u: &mut [V]) {
        u[0] = q[0] * (-dot(r, r).rsqrt()).exp();
    }
    fn value_degree(_: usize) -> i32 {
        0
    }
}

#[test]
fn the_test_for_zero_goes_only_where_a_zero_shows() {
    let shape = Shape::tuned::<f32>(1);
    let text = |p: Program| p.source.split("direct summation").next().unwrap_or_default().to_string();
    let laplace = text(direct_program::<f32>(&Member::of::<Gradient<Laplace>>(), shape));
    assert_eq!(
        laplace.matches("bare_rsqrt(").count(),
        1 + text(direct_program::<f32>(&Member::of::<Hides>(), shape)).matches("bare_rsqrt(").count()
    );
    assert!(for_sm_90(&direct_program::<f32>(&Member::of::<Hides>(), shape)).is_ok());
}

/// Every operation that a kernel in text may have, with several densities, strengths and values.
#[test]
fn kernels_made_at_run_time_compile_for_sm_90() {
    let general = "parameter a = 2\nc = x < y and not (z == a) or r <= 1\n\
                   value where(c, q1*sin(a*r)/r, q2*erf(r)*exp(-r^2)) + abs(x)*q2*max(y, fma(x, y, z))\n\
                   value q1*ln(r)/sqrt(r^2 + a^2) - cos(x)*tanh(y)*q2*rsqrt(a)*pow(r, -1.5)";
    let mut programs = Programs::default();
    for text in [general, "densities 3\nparameter a = 2\nvalue (1 + a*r)*exp(-a*r)"] {
        for outputs in [Outputs::POTENTIAL, Outputs::GRADIENT] {
            programs.kernels(&Traced::parse(text).unwrap().kernels(outputs).unwrap());
        }
    }
    // A step of three takes each stage, in both precisions where it has more than four programs.
    programs.one_in(3, |name, program| {
        let Compiled { cubin, log } = for_sm_90(program).unwrap_or_else(|e| panic!("{e}"));
        assert!(!cubin.is_empty() && !log.contains("warning"), "{name}:\n{log}");
    });
}

#[test]
fn a_program_that_does_not_compile_says_which_and_why() {
    let mut program = direct_program::<f64>(&Member::of::<Hessian<Laplace>>(), Shape::tuned::<f64>(10));
    program.source = program.source.replace("bare_rsqrt", "bear_rsqrt");
    match for_sm_90(&program) {
        Err(Error::DeviceCompile { kernel, log }) => {
            assert!(kernel.contains("laplace") && log.contains("bear_rsqrt"), "{kernel}: {log}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_capability_that_the_compiler_does_not_know_is_an_error() {
    preload();
    let e = compile(&all_programs()[0], (1, 0)).unwrap_err();
    assert!(matches!(&e, Error::DeviceCompile { .. }), "{e}");
}

#[test]
fn a_missing_device_is_an_error() {
    preload();
    match Device::open(&DeviceOptions { ordinal: 1000, ..Default::default() }) {
        Err(Error::NoDevice { reason }) => assert!(!reason.is_empty()),
        other => panic!("{other:?}"),
    }
}
