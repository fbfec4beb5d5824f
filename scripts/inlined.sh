#!/usr/bin/env bash
# Arithmetic of vectors must be instructions, never calls. A closure or a helper that is not compiled into the function that
# enables the instruction set turns each operation into a call, and sums take up to 18 times as long. This script lists
# the sums and products of vectors that are functions of the program `fmm`; there must be none. Build it first (cargo build
# --release).
set -euo pipefail
cd "$(dirname "$0")/.."
program="${CARGO_TARGET_DIR:-target}/release/fmm"
calls=$(nm -C "$program" | grep -E 'core_arch::x86::.*::_mm(256|512)_(add|sub|mul|div|fmadd|fnmadd)_' || true)
if [ -n "$calls" ]; then
    echo "$program calls arithmetic of vectors instead of containing them:" >&2
    echo "$calls" >&2
    exit 1
fi
echo "all sums and products of vectors in $program are instructions"
