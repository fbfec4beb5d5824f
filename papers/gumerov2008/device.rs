//! Gumerov & Duraiswami 2008 on a GPU, our rows beside those of their GeForce 8800 GTX: Tables 1 and 2 (direct sums,
//! sparse products), 8 and 11 (the whole method), and where it breaks even with direct sums.

use crate::measure::{Cloud, Leaves, Method, Seen};
use backend_cuda::Device;
use fmm_traits::{Error, Outputs, Stage};

const POTENTIAL: Outputs = Outputs::POTENTIAL;

/// All of them, for up to `n` sources and one more receiver.
pub fn tables(device: &Device, method: Method, n: usize) -> Result<(), Error> {
    let both = Outputs::POTENTIAL | Outputs::GRADIENT;
    println!("{}, single precision, against one GeForce 8800 GTX; seconds\n", device.info().name);
    table1(device, both, n)?;
    let cloud = Cloud::new(device, n, true);
    let mut orders = Vec::new();
    for row in TABLE8 {
        orders.push(order_for(&cloud, method, row.2)?);
    }
    table2(device, method, orders[1], n)?;
    let worst = table8(&cloud, method, &orders)?;
    table11(&cloud, method, both, &orders)?;
    break_even(device, method, both, &orders)?;
    assert!(worst <= 1.0 || n < 1 << 20, "on their tree errors are up to {worst} of theirs");
    Ok(())
}

/// Table 1: N; seconds of the potential, and of potential and force.
const TABLE1: [(usize, f64, f64); 11] = [
    (1 << 10, 3.246e-4, 4.86e-4),
    (1 << 11, 7.959e-4, 9.53e-4),
    (1 << 12, 2.201e-3, 2.99e-3),
    (1 << 13, 6.851e-3, 9.86e-3),
    (1 << 14, 2.424e-2, 3.49e-2),
    (1 << 15, 7.947e-2, 0.138),
    (1 << 16, 0.3452, 0.502),
    (1 << 17, 1.361, 1.986),
    (1 << 18, 5.361, 7.892),
    (1 << 19, 21.345, 31.41),
    (1 << 20, 85.205, 125.36),
];

fn table1(device: &Device, both: Outputs, n: usize) -> Result<(), Error> {
    println!("Table 1, direct sums: N, potential theirs, ours, ratio, with force theirs, ours, ratio");
    for (points, potential, force) in TABLE1.into_iter().filter(|row| row.0 <= n) {
        let cloud = Cloud::new(device, points, true);
        let ours = [cloud.direct(POTENTIAL)?, cloud.direct(both)?];
        let [a, b] = [potential / ours[0], force / ours[1]];
        println!("{points:>8} {potential:>9.2e} {:>9.2e} {a:>5.0}   {force:>9.2e} {:>9.2e} {b:>5.0}", ours[0], ours[1]);
    }
    println!();
    Ok(())
}

/// Points of their leaves, at most.
const CLUSTER: f64 = 320.0;
/// The leaf sizes that ours is chosen from.
const OURS: [f64; 4] = [40.0, 60.0, 75.0, 128.0];

/// The level at which their leaves are.
fn their_level(n: usize) -> i32 {
    (0..).find(|&level| n as f64 * 8f64.powi(-level) <= CLUSTER).unwrap_or(0)
}

/// The cheapest order with an error that is not above `error` on their tree, or the most accurate.
fn order_for(cloud: &Cloud, method: Method, error: f64) -> Result<usize, Error> {
    let mut best = (*method.orders().start(), f64::INFINITY);
    for order in method.orders() {
        let found = cloud.measure(method, POTENTIAL, order, Leaves::Level(4))?.errors[0];
        if found < best.1 {
            best = (order, found);
        }
        if found <= error {
            return Ok(order);
        }
    }
    Ok(best.0)
}

/// Table 2: N, seconds of the sparse product at their best settings.
const TABLE2: [(usize, f64); 6] =
    [(1 << 15, 0.0151), (1 << 16, 0.0275), (1 << 17, 0.0713), (1 << 18, 0.120), (1 << 19, 0.221), (1 << 20, 0.596)];

fn table2(device: &Device, method: Method, order: usize, n: usize) -> Result<(), Error> {
    println!(
        "Table 2, sparse products: N, theirs, ours on their tree, ratio; on the leaves with which the whole takes least"
    );
    for (points, theirs) in TABLE2.into_iter().filter(|row| row.0 <= n) {
        let cloud = Cloud::new(device, points, true);
        let same = cloud.measure(method, POTENTIAL, order, Leaves::Level(their_level(points)))?;
        let (leaf, ours) = cloud.best(method, POTENTIAL, order, &OURS)?;
        let [a, b] = [same, ours].map(|s| s.sum(&[Stage::P2p]));
        println!(
            "{points:>8} {theirs:>8.4} {a:>9.2e} {:>5.0}   {b:>9.2e} {:>5.0}, {leaf} a leaf",
            theirs / a,
            theirs / b
        );
    }
    println!();
    Ok(())
}

/// Table 8 on the GPU: truncation number, depth, error, seconds of S expansion, upward and downward pass, R
/// evaluation, sparse product and all.
const TABLE8: [(usize, i32, f64, [f64; 6]); 3] = [
    (4, 4, 2.3e-4, [0.011, 0.00046, 0.061, 0.011, 0.60, 0.6835]),
    (8, 4, 8.3e-6, [0.020, 0.00218, 0.265, 0.021, 0.60, 0.9082]),
    (12, 4, 9.5e-7, [0.040, 0.00562, 0.72, 0.030, 0.59, 1.395]),
];

/// Returns the largest of our errors on their tree in units of theirs.
fn table8(cloud: &Cloud, method: Method, orders: &[usize]) -> Result<f64, Error> {
    println!("Table 8, potential, {}: orders are those that reach their errors", method.name());
    println!("{:<36} {:>8}     S exp        up      down    R eval    sparse     total  tree+lists", "", "error");
    let mut worst: f64 = 0.0;
    for ((p, level, error, seconds), &order) in TABLE8.into_iter().zip(orders) {
        let cells: String = seconds.iter().map(|s| format!(" {s:>9.2e}")).collect();
        println!("{:<36} {error:>8.1e} {cells}", format!("p = {p}, depth {level}: theirs"));
        let (leaf, ours) = cloud.best(method, POTENTIAL, order, &OURS)?;
        let same = cloud.measure(method, POTENTIAL, order, Leaves::Level(level))?;
        worst = worst.max(same.errors[0] / error);
        for (name, seen) in [("their tree".to_string(), same), (format!("{leaf} a leaf"), ours)] {
            let cells: String = columns(&seen).iter().map(|s| format!(" {s:>9.2e}")).collect();
            let name = format!("  ours, order {order}, {name}");
            println!("{name:<36} {:>8.1e} {cells}   {:>9.2e}", seen.errors[0], seen.prepared);
        }
    }
    println!();
    Ok(worst)
}

/// Their columns.
fn columns(seen: &Seen) -> [f64; 6] {
    [
        seen.sum(&[Stage::P2m]),
        seen.sum(&[Stage::M2m]),
        seen.sum(&[Stage::M2l, Stage::P2l, Stage::L2l]),
        seen.sum(&[Stage::L2p, Stage::M2p]),
        seen.sum(&[Stage::P2p]),
        seen.apply,
    ]
}

/// Table 11: truncation number, seconds of potential and gradient; and, from §4.4.2, the N from which that is faster
/// than direct sums.
const TABLE11: [(usize, f64, f64); 3] = [(4, 0.979, 1e4), (8, 1.227, 3e4), (12, 1.761, 7e4)];

fn table11(cloud: &Cloud, method: Method, both: Outputs, orders: &[usize]) -> Result<(), Error> {
    println!("Table 11, potential and gradient: theirs; ours evaluation, ratio, with tree and lists, ratio; errors");
    for ((p, theirs, _), &order) in TABLE11.into_iter().zip(orders) {
        let (leaf, ours) = cloud.best(method, both, order, &OURS)?;
        let (a, b) = (ours.apply, ours.whole());
        let errors: Vec<String> = ours.errors.iter().map(|e| format!("{e:.1e}")).collect();
        println!(
            "p = {p:>2} {theirs:>6.3}   order {order}, {leaf} a leaf: {a:>9.2e} {:>5.0}   {b:>9.2e} {:>5.0}   {}",
            theirs / a,
            theirs / b,
            errors.join(" ")
        );
    }
    println!();
    Ok(())
}

/// Where lines through the logarithms of times cross.
fn crossing(rows: &[(usize, f64, f64)]) -> Option<f64> {
    let gap = |row: &(usize, f64, f64)| (row.2 / row.1).ln();
    let last = rows.iter().rposition(|row| gap(row) < 0.0)?;
    let [a, b] = [rows.get(last)?, rows.get(last + 1)?];
    let part = gap(a) / (gap(a) - gap(b));
    Some(a.0 as f64 * (b.0 as f64 / a.0 as f64).powf(part))
}

/// Times of direct sums are of the device alone, of the method by the clock of the host.
fn break_even(device: &Device, method: Method, both: Outputs, orders: &[usize]) -> Result<(), Error> {
    println!(
        "Break-even with our own direct sums, potential and gradient: theirs; ours evaluation, with tree and lists"
    );
    for ((p, _, theirs), &order) in TABLE11.into_iter().zip(orders) {
        let (mut evaluation, mut whole) = (Vec::new(), Vec::new());
        for log in 13..=18 {
            let cloud = Cloud::new(device, 1 << log, true);
            let direct = cloud.direct(both)?;
            let (_, ours) = cloud.best(method, both, order, &[60.0, 150.0, 400.0])?;
            evaluation.push((1 << log, ours.apply, direct));
            whole.push((1 << log, ours.whole(), direct));
        }
        for (a, b) in evaluation.iter().zip(&whole) {
            println!("    N = {:>6}: direct {:.2e}, evaluation {:.2e}, with tree and lists {:.2e}", a.0, a.2, a.1, b.1);
        }
        let show = |rows| crossing(rows).map_or("outside".to_string(), |n| format!("{n:.1e}"));
        println!("p = {p:>2} {theirs:.0e}   order {order}: {} {}", show(&evaluation), show(&whole));
    }
    Ok(())
}
