//! Properties of the machine: name of the processor, free memory, peak memory of the process.

use std::fs::read_to_string;

/// A `key: value kB` line of a Linux status file, in bytes.
fn kilobytes(file: &str, key: &str) -> Option<u64> {
    let text = read_to_string(file).ok()?;
    let line = text.lines().find(|l| l.starts_with(key))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

/// The name of the processor. `None` where the system does not say.
pub fn processor() -> Option<String> {
    let text = read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("model name"))?;
    Some(line.split(':').nth(1)?.trim().to_string())
}

/// Bytes that can still be allocated: what the system calls available, within the limit of the
/// control group if there is one. `None` where the system does not say.
pub fn available_memory() -> Option<u64> {
    let number = |file: &str| read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let group = number("/sys/fs/cgroup/memory.max")
        .zip(number("/sys/fs/cgroup/memory.current"))
        .map(|(most, used)| most.saturating_sub(used));
    let system = kilobytes("/proc/meminfo", "MemAvailable:");
    system.into_iter().chain(group).min()
}

/// A name that processes have in common if and only if they share the memory of this machine. Containers have names of
/// their own, as they have limits of their own.
pub(crate) fn host() -> String {
    let read = |file: &str| read_to_string(file).unwrap_or_default();
    read("/proc/sys/kernel/hostname") + &read("/proc/sys/kernel/random/boot_id")
}

/// Largest resident size of this process so far, in bytes. `None` where the system does not say.
pub fn peak_memory() -> Option<u64> {
    kilobytes("/proc/self/status", "VmHWM:")
}
