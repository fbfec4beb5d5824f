//! Compiles `src/calls.c` with the MPI's own compiler, and links the MPI.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=src/calls.c");
    println!("cargo:rerun-if-env-changed=MPICC");
    let mpicc = std::env::var("MPICC").unwrap_or_else(|_| "mpicc".to_string());
    // Open MPI and MPICH both print what they would run.
    let shown = match Command::new(&mpicc).arg("-show").output() {
        Ok(shown) if shown.status.success() => String::from_utf8_lossy(&shown.stdout).into_owned(),
        Ok(shown) => panic!("{mpicc} -show fails: {}", String::from_utf8_lossy(&shown.stderr)),
        Err(e) => panic!("cannot run {mpicc} ({e}): install an MPI (docs/ranks.md), or name its compiler in MPICC"),
    };
    cc::Build::new().compiler(&mpicc).file("src/calls.c").warnings(true).compile("fmm_mpi_calls");
    for word in shown.split_whitespace() {
        if let Some(folder) = word.strip_prefix("-L") {
            println!("cargo:rustc-link-search=native={folder}");
        } else if let Some(library) = word.strip_prefix("-l") {
            println!("cargo:rustc-link-lib=dylib={library}");
        }
    }
}
