#!/usr/bin/env bash
# Makes a folder and an archive to carry to a machine with an NVIDIA GPU and its driver but no Rust: the tests that need
# one, the benches, the tables of papers and the command `fmm`, stripped, below 40 MB in all.
# scripts/gpu-bundle.sh [FOLDER]      default: gpu-bundle in the target directory
set -euo pipefail
cd "$(dirname "$0")/.."
target="${CARGO_TARGET_DIR:-target}"
folder="${1:-$target/gpu-bundle}"
limit=$((40 * 1000 * 1000))
command -v strip >/dev/null || { echo "scripts/gpu-bundle.sh: needs strip (binutils)" >&2; exit 1; }

cargo build --release --package fmm-cli --bin fmm
cargo build --release --package backend-cuda --example device_rates --example papers
# Cargo puts a hash into the name of a test.
tests=$(cargo test --release --package backend-cuda --test gpu --no-run 2>&1 | tee >(cat >&2) |
    sed -n 's/.*Executable.*(\(.*\))$/\1/p')

rm -rf "$folder"
mkdir -p "$folder"
strip -o "$folder/fmm" "$target/release/fmm"
strip -o "$folder/gpu-tests" "$tests"
for example in device_rates papers; do
    strip -o "$folder/$example" "$target/release/examples/$example"
done
cp scripts/gpu-bundle-run.sh "$folder/run.sh"
cp benches/gpu.py "$folder"
tar -C "$(dirname "$folder")" -czf "$folder.tar.gz" "$(basename "$folder")"

for file in "$folder"/*; do printf '%12s bytes  %s\n' "$(stat -c %s "$file")" "$file"; done
total=$(cat "$folder"/* | wc -c)
printf '%12s bytes in all, packed %s: %s.tar.gz\n' "$total" "$(stat -c %s "$folder.tar.gz")" "$folder"
if [ "$total" -gt "$limit" ]; then
    echo "scripts/gpu-bundle.sh: more than $limit bytes" >&2
    exit 1
fi
