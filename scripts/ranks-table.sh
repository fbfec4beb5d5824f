#!/usr/bin/env bash
# Prints the table of one sum over the GPUs of this host (benches/ranks.py), and keeps its rows in runs/<date>-<host>/.
# scripts/ranks-table.sh [OPTION …]      options of benches/ranks.py, such as --devices 0,1,2,3; default: all GPUs
set -euo pipefail
cd "$(dirname "$0")/.."
fmm="${CARGO_TARGET_DIR:-target}/release/fmm"
cargo build --release --package fmm-cli --bin fmm
gpus=$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd,)
exec python3 benches/ranks.py --fmm "$fmm" --devices "$gpus" --out "runs/$(date +%F)-$(hostname)" "$@"
