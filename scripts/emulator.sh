#!/usr/bin/env bash
# Builds the emulated GPU (cuda-emulator/) into target/cuda-emulator, unless it is up to date, and prints that folder.
# Programs find it with LD_LIBRARY_PATH. Needs a C++ compiler: CXX, or c++.
set -euo pipefail
cd "$(dirname "$0")/.."
out="$PWD/${CARGO_TARGET_DIR:-target}/cuda-emulator"
cxx=${CXX:-c++}
if ! command -v "$cxx" > /dev/null; then
    echo "scripts/emulator.sh: no C++ compiler '$cxx' (CXX may name one); the emulator needs it" >&2
    exit 1
fi
mkdir -p "$out"
cp cuda-emulator/{cuda,runtime}.hpp "$out"
build() {
    local library=$1
    shift
    local source
    for source in cuda-emulator/*; do
        if [ "$source" -nt "$out/$library" ]; then
            "$cxx" -std=c++17 -O2 -Wall -Wextra -shared -fPIC -fvisibility=hidden -pthread "$@" -o "$out/$library.new" -ldl
            mv "$out/$library.new" "$out/$library"
            return
        fi
    done
}
build libcuda.so cuda-emulator/driver.cpp cuda-emulator/blocks.cpp
build libnvrtc.so cuda-emulator/nvrtc.cpp
echo "$out"
