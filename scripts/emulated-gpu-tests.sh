#!/usr/bin/env bash
# Tests of the GPU backend on the emulated GPU of cuda-emulator/: every kernel runs, compiled for the CPU. Needs a C++
# compiler. Arguments are parts of the names of tests. Without any, a selection runs, in two to three minutes on two
# cores: trees and lists, arrays of a caller, errors, a far field, ranks on two devices, the plane. `all` runs
# everything, which takes most of an hour. With FMM_EMULATOR_CALLS=1 the number of calls of the driver is printed at the
# end, by name.
set -euo pipefail
cd "$(dirname "$0")/.."
emulator=$(scripts/emulator.sh)
tests=("$@")
case "${1:-}" in
"") tests=(topology::every topology::sources topology::many topology::deeper topology::roots topology::chosen errors::
    ends::arrays_of ends::large ends::the_near_field_in_f32_keeps far::a_kernel_of_the_user far::bad_strengths
    limits::a_root ranks::equivalent ranks::an_error ranks::shares cuts::a_pyramid direct::sets_on
    plane::wrong near_alone:: tasks::) ;;
all) tests=() ;;
esac
# The binary of some tests of a crate. With all crates, as in other builds, so that nothing is built twice.
binary() {
    cargo test --release --workspace --test "$2" --no-run --message-format=json 2>/dev/null |
        grep "/$1/Cargo.toml" | sed -n 's/.*"executable":"\([^"]*\/'"$2"'-[^"]*\)".*/\1/p' | tail -n 1
}
gpu=$(binary backend-cuda gpu)
export FMM_EMULATOR_DEVICES=2
run() {
    env -u FMM_NVRTC -u CUDA_PATH LD_LIBRARY_PATH="$emulator${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$@"
}
run "$gpu" "${tests[@]}"
if [ $# -eq 0 ]; then
    # The calls that new points take, with pools of memory, which the emulated GPU has not otherwise.
    run FMM_EMULATOR_POOLS=1 "$gpu" moves::
    # What is compared with plans on the CPU.
    run "$(binary fmm-cli it)" --ignored samples_are_those_of_the_cpu | tee "$emulator/samples"
    grep -q " 1 passed" "$emulator/samples"
fi
