//! Tables of papers on a GPU, our rows beside theirs:
//! `cargo run --release -p backend-cuda --example papers -- goude2012|gumerov2008|lashuk2009 [--method
//! equivalent|spherical|spherical-rcr] [--n N]`
//!
//! Points, strengths and values are in device memory. goude2012 is in double precision, the others in single precision, as
//! theirs were.

#[path = "goude2012/device.rs"]
mod goude2012;
#[path = "gumerov2008/device.rs"]
mod gumerov2008;
#[path = "lashuk2009/device.rs"]
mod lashuk2009;
#[path = "device/measure.rs"]
mod measure;
#[path = "goude2012/measure.rs"]
mod measure2d;

use backend_cuda::{Device, DeviceOptions};
use measure::Method;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let after = |name: &str| args.iter().position(|a| a == name).and_then(|i| args.get(i + 1));
    let method = after("--method").map_or("equivalent", String::as_str);
    let method = Method::named(method).ok_or_else(|| format!("no method `{method}` on the device"))?;
    let n = after("--n").map(|n| n.parse()).transpose()?;
    let open = || Device::open(&DeviceOptions::default());
    match args.first().map(String::as_str) {
        Some("gumerov2008") => gumerov2008::tables(&open()?, method, n.unwrap_or(1 << 20))?,
        Some("lashuk2009") => lashuk2009::table(&open()?, method, n.unwrap_or(1_000_000))?,
        Some("goude2012") => {
            // One core: the CPU side runs on this thread alone.
            let device = open()?;
            rayon::ThreadPoolBuilder::new().num_threads(1).build()?.install(|| goude2012::tables(&device))?
        }
        _ => return Err("which paper? goude2012, gumerov2008 or lashuk2009".into()),
    }
    Ok(())
}
