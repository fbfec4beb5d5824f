#!/usr/bin/env bash
# Arithmetic of vectors must be instructions, never calls. A closure or a helper that is not compiled into the function
# that enables the instruction set turns each operation into a call, and sums take up to 18 times as long. This script
# lists the operations on vectors that are functions of the program `fmm`; there must be none. Build it first (cargo
# build --release). What the compiler inlines depends on the number of codegen units and on the instruction sets of the
# build, so check the build that you measure or ship.
set -euo pipefail
cd "$(dirname "$0")/.."
program="${CARGO_TARGET_DIR:-target}/release/fmm"
names=$(nm -C "$program")
calls=$(grep -E 'core_arch::x86::.*::_mm(256|512)_' <<<"$names" || true)
if [ -n "$calls" ]; then
    echo "$program calls operations on vectors instead of containing them:" >&2
    echo "$calls" >&2
    exit 1
fi
echo "all operations on vectors in $program are instructions"
