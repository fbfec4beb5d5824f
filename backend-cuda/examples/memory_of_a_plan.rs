//! Where the memory of a plan is: the arrays that are held at once when they take the most, while the plan is made, and
//! then while it is applied. Laplace in f32 on uniform points.
//!
//! `memory_of_a_plan [log2 of the number of points] [potential | gradient] [harmonics | densities] [order]`

use backend_cuda::{CallerPoints, Device, DeviceOptions, Expansion, Placed, Settings, SphericalSettings, solver};
use fmm_kernels::Laplace;
use fmm_kernels::equivalent::Fill;
use fmm_kernels::spherical::Truncation;
use fmm_traits::testkit::clouds::CloudKind;
use fmm_traits::{Error, Kernels, Numbers, NumbersMut, Outputs, Policy, Precision};
use fmm_tree::{BuildOptions, ListOptions};

fn table(device: &Device, when: &str, n: usize) {
    let rows = device.most_memory();
    let total: u64 = rows.iter().map(|row| row.1).sum();
    println!("\n{when}: {total} bytes, {:.1} a point", total as f64 / n as f64);
    for (name, bytes) in rows.iter().filter(|row| row.1 > total / 500) {
        println!("{:10.2}  {name}", *bytes as f64 / n as f64);
    }
}

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |i: usize, or: &str| args.get(i).cloned().unwrap_or(or.to_string());
    let n = 1usize << arg(0, "16").parse::<u32>().unwrap_or(16);
    let outputs = if arg(1, "") == "gradient" { Outputs::POTENTIAL | Outputs::GRADIENT } else { Outputs::POTENTIAL };
    let harmonics = arg(2, "harmonics") == "harmonics";
    let order = arg(3, if harmonics { "8" } else { "5" }).parse().unwrap_or(5);
    let expansion = match harmonics {
        true => {
            Expansion::Spherical(SphericalSettings { truncation: Truncation::Fixed, translation: None, parents: false })
        }
        false => Expansion::Equivalent(Fill::Surface),
    };
    let lists = ListOptions { m2p_min_sources: order * order, p2l_min_targets: order * order };
    let settings = Settings { expansion, policy: Policy::Uvwx, order, lists, beside: None, cache: None };
    let device = Device::open(&DeviceOptions::default())?;
    let kernels = Kernels::of(&Laplace, outputs)?;
    device.watch_memory();
    let points = CallerPoints::new(&device, "sources", &CloudKind::Uniform.points(n, 1))?;
    let mut placed = Placed::new(&device, &BuildOptions { occupancy: 64.0, ..Default::default() }, &points, None)?;
    table(&device, "the tree", n);
    device.watch_memory();
    let counts = placed.counts(&settings)?;
    table(&device, "the lists (beside what the tree holds)", n);
    drop((placed, points));
    device.watch_memory();
    let points = CallerPoints::new(&device, "sources", &CloudKind::Uniform.points(n, 1))?;
    let placed = Placed::new(&device, &BuildOptions { occupancy: 64.0, ..Default::default() }, &points, None)?;
    drop(points);
    let plan = solver(&kernels, &settings, Precision::F32, placed)?;
    table(&device, "the whole plan", n);
    let columns: Vec<usize> = plan.columns().iter().map(|c| c.columns.len()).collect();
    let (strengths, mut out) = (vec![1f32; n], columns.iter().map(|c| vec![0f32; c * n]).collect::<Vec<_>>());
    let mut values: Vec<NumbersMut> = out.iter_mut().map(|out| NumbersMut::F32(out)).collect();
    plan.apply_numbers(Numbers::F32(&strengths), &mut values, &mut |_, _| true)?;
    table(&device, "plan and evaluation, arrays of the host in f32", n);
    println!(
        "\n{} boxes, {} leaves, {} levels; {} bytes held",
        counts.boxes,
        counts.leaves,
        counts.levels,
        plan.bytes()
    );
    Ok(())
}
