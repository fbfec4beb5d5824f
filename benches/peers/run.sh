#!/usr/bin/env bash
# This project and the fmm3dpy wheel on the same points: see README.md beside this file.
set -euo pipefail
cd "$(dirname "$0")/../.."
target="${CARGO_TARGET_DIR:-target}"
if [ ! -x "$target/peers/bin/python" ]; then
    python3 -m venv "$target/peers"
    "$target/peers/bin/pip" install --quiet --disable-pip-version-check -r benches/peers/requirements.txt
fi
cargo build --release --bin fmm
exec "$target/peers/bin/python" benches/peers/compare.py --binary "$target/release/fmm" "$@"
