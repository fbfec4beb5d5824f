#!/usr/bin/env bash
# Every test of the workspace, in release. Printed kernels are compiled with NVIDIA's run-time
# compiler (no GPU needed): scripts/nvrtc.sh fetches it once unless FMM_NVRTC names its directory.
# Arguments go to cargo test instead of --workspace: scripts/test.sh -p fmm-tree
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${FMM_NVRTC:-}" ] && [ ! -e target/nvrtc/nvidia/cu13/lib/libnvrtc.so.13 ]; then
    if ! log=$(scripts/nvrtc.sh 2>&1); then
        echo "scripts/test.sh: cannot install nvidia-cuda-nvrtc with python3 -m pip: $(tail -n 1 <<<"$log")" >&2
        exit 1
    fi
fi
tests() {
    cargo test --release --no-fail-fast "$@"
}
# The last line adds up those of the crates. Examples have no tests, and are not compiled.
{
    if [ $# -gt 0 ]; then
        tests "$@"
    else
        status=0
        tests --workspace --tests || status=$?
        tests --workspace --doc || status=$?
        exit "$status"
    fi
} 2>&1 | awk '
    { print; fflush() }
    /^test result:/ { passed += $4; failed += $6; ignored += $8; binaries++ }
    END {
        if (binaries) printf "\ntest result: %s. %d passed; %d failed; %d ignored; %d binaries in all\n",
            failed ? "FAILED" : "ok", passed, failed, ignored, binaries
    }'
