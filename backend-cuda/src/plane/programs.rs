//! The programs of the plane: sources of `kernels/`, preceded by definitions.

use crate::compile::Program;
use crate::programs::{Groups, MAX_TILE_BYTES, plain, real};
use adaptive2d::PlaneKernel;
use adaptive2d::laurent::slot_of;
use fmm_traits::{Member, Real};

/// Registers of a multiprocessor.
const REGISTERS: usize = 1 << 16;
/// Threads per block of the kernels of series.
const SERIES_BLOCK: usize = 128;

/// The pyramid.
pub(crate) fn pyramid_program() -> Program {
    let entries = &[
        "plane_keys",
        "plane_ranks",
        "plane_by_y",
        "plane_by_x",
        "plane_move",
        "plane_put",
        "plane_split_small",
        "plane_leaf_starts",
        "plane_are_sources",
        "plane_pick",
        "plane_pick_starts",
        "plane_shrink_leaves",
        "plane_shrink",
    ];
    plain("plane_pyramid.cu", include_str!("../../kernels/plane_pyramid.cu"), entries)
}

/// Edge lists.
pub(crate) fn connect_program() -> Program {
    let entries = &[
        "plane_root",
        "plane_couple",
        "plane_couple_count",
        "plane_strong_fill",
        "plane_weak_fill",
        "plane_finest_count",
        "plane_finest_fill",
    ];
    plain("plane_connect.cu", include_str!("../../kernels/plane_connect.cu"), entries)
}

fn with_definitions<T: Real>(
    file: &str,
    source: &str,
    definitions: &[(&str, String)],
    entries: &'static [&'static str],
) -> Program {
    let mut text = format!("#define REAL {}\n", real::<T>());
    for (name, value) in definitions {
        text += &format!("#define {name} {value}\n");
    }
    let list: Vec<String> = definitions.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let name = format!("{file} in {} ({})", T::NAME, list.join(", "));
    Program { name, source: text + source, entries, contract: true }
}

/// The definitions of `field.cuh`.
fn field(kernel: PlaneKernel, derivatives: usize) -> [(&'static str, String); 4] {
    let flag = |on: bool| u32::from(on).to_string();
    [
        ("CHARGES", flag(kernel.charges())),
        ("POLES", flag(kernel.poles())),
        ("COMPLEX", flag(kernel.complex())),
        ("DERIVATIVES", derivatives.to_string()),
    ]
}

/// The stages of series of order p in precision `T`, whose values carry derivatives up to the order `derivatives`.
pub fn plane_series_program<T: Real>(kernel: PlaneKernel, derivatives: usize, order: usize) -> Program {
    let single = T::NAME == "f32";
    // A lane of M2L holds a series in registers, and some further numbers.
    let registers = (order + 1) * if single { 2 } else { 4 } + if single { 40 } else { 64 };
    let blocks = (REGISTERS / (SERIES_BLOCK * registers.min(255))).clamp(1, 8);
    let largest: f64 = if single { 1e25 } else { 1e100 };
    let mut definitions = vec![("ORDER", order.to_string())];
    definitions.extend(field(kernel, derivatives));
    definitions.push(("BLOCKS", blocks.to_string()));
    definitions.push(("LARGEST_RATIO", format!("{:e}", largest.powf(1.0 / order as f64))));
    let entries = &["plane_p2m", "plane_p2l", "plane_m2m", "plane_l2l", "plane_m2l", "plane_l2p", "plane_m2p"];
    with_definitions::<T>("plane_series.cu", include_str!("../../kernels/plane_series.cu"), &definitions, entries)
}

/// The pair function of a kernel that adds to its potentials, and to those derivatives of the first from which all
/// others follow.
fn pair<T: Real>(name: &str, kernel: PlaneKernel, derivatives: usize, member: &Member) -> String {
    let slots: Vec<usize> = (0..2 + 2 * derivatives)
        .filter(|&c| c != 1 || kernel.complex())
        .map(|c| slot_of(kernel.potentials(), c).0)
        .collect();
    member.tape().with_values(&slots).cuda_adding::<T>(name, "reciprocal")
}

/// P2P in precision `T`. In f32, coordinates are relative to the leaf (`FRAMED`).
pub fn plane_p2p_program<T: Real>(kernel: PlaneKernel, derivatives: usize) -> Program {
    let groups = Groups::plane::<T>(kernel.potentials() + 2 * derivatives).definitions(MAX_TILE_BYTES);
    let mut definitions: Vec<(&str, String)> = groups.into_iter().map(|(n, v)| (n, v.to_string())).collect();
    definitions.extend(field(kernel, derivatives));
    definitions.push(("FRAMED", u32::from(T::NAME == "f32").to_string()));
    let real = kernel.real_member(derivatives);
    definitions.push(("REAL_FORM", u32::from(real.is_some()).to_string()));
    let mut functions = "#include \"shared/reciprocal.cuh\"\n".to_string();
    functions += &pair::<T>("whole_pair", kernel, derivatives, &kernel.member(derivatives));
    functions += &real.map_or(String::new(), |real| pair::<T>("real_pair", kernel, derivatives, &real));
    let source = functions + include_str!("../../kernels/plane_p2p.cu");
    with_definitions::<T>("plane_p2p.cu", &source, &definitions, &["plane_p2p", "plane_imaginary"])
}
