#!/bin/sh
# Installs NVIDIA's run-time compiler (no GPU needed, 90 MB) where the tests of fmm-kernels look
# for it: target/nvrtc, or the directory given as the only argument. Needs python3 with pip.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
python3 -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
    --target "${1:-$root/target/nvrtc}" nvidia-cuda-nvrtc==13.0.88
