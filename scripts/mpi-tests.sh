#!/usr/bin/env bash
# Ranks over MPI: sums, failures and the command. Installs Open MPI with apt-get, as root, if mpirun is missing. A job that
# went well prints its last line: the exit status proves nothing. Every job has a limit and leaves no process behind.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! { command -v mpirun && command -v mpicc; } >/dev/null; then
    log=$(apt-get install -y --no-install-recommends openmpi-bin libopenmpi-dev 2>&1) ||
        log=$(apt-get update 2>&1 && apt-get install -y --no-install-recommends openmpi-bin libopenmpi-dev 2>&1) || {
        echo "scripts/mpi-tests.sh: cannot install Open MPI: $(tail -n 1 <<<"$log")" >&2
        exit 1
    }
fi
# The examples make cargo choose the features of the tests, so that the crates below are those that the tests have built.
cargo build --release --workspace --features mpi --example mpi_check --bin fmm
built="${CARGO_TARGET_DIR:-target}/release"
# Its path is in the command line of every rank.
root=$PWD
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$built/examples/mpi_check" "$built/fmm" "$folder"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export RAYON_NUM_THREADS=1 FMM_RANK_TIMEOUT=60

fail() {
    echo "scripts/mpi-tests.sh: $1" >&2
    cat "$folder/log" >&2
    exit 1
}

# job LIMIT RANKS COMMAND…: runs a job; its output is in $folder/log, its status in $status.
job() {
    local limit=$1 ranks=$2
    shift 2
    local start=$SECONDS
    status=0
    timeout -k 5 "$limit" mpirun -n "$ranks" "$@" >"$folder/log" 2>&1 </dev/null || status=$?
    [ "$status" != 124 ] && [ "$status" != 137 ] || [ $((SECONDS - start)) -lt "$limit" ] ||
        fail "$* on $ranks ranks: no end after $limit s"
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        pgrep -f "^$folder" >/dev/null || return 0
        sleep 0.2
    done
    fail "$* on $ranks ranks leaves processes: $(pgrep -af "^$folder")"
}

# well MODE RANKS: a mode that prints its last line.
well() {
    job 60 "$2" "$folder/mpi_check" "$1"
    grep -q "^mpi_check $1: well on $2 ranks\$" "$folder/log" || fail "$1 on $2 ranks: the last line is missing"
    echo "$1 on $2 ranks: well"
}

# broken MODE TEXT: a mode after which the job has failed, with a text in its output.
broken() {
    job 15 4 "$folder/mpi_check" "$1"
    [ "$status" != 0 ] && ! grep -q "well on" "$folder/log" || fail "$1: the job did not fail"
    grep -q "$2" "$folder/log" || fail "$1: no '$2' in the output"
    echo "$1: ended with status $status"
}

for ranks in 1 2 3 4 7 8; do well all "$ranks"; done
for mode in cut handle nan return error; do well "$mode" 4; done
broken panic "this rank panics in a stage"
broken kill "signal 9"
broken exit ""
FMM_RANK_TIMEOUT=2 broken silent "rank 1 is lost: no message for 2.0 s"

# The command: a file of points and one of strengths, which are sums themselves.
fmm="$folder/fmm"
cd "$folder"
"$fmm" run --demo plummer --n 3000 --tolerance 1e-3 --outputs gradient --out p.npy >log
"$fmm" run --demo uniform --n 3000 --tolerance 1e-3 --out q.npy >log
files="--sources p.npy --strengths q.npy --tolerance 1e-4 --threads 1"
for ranks in 3 4; do
    for out in "potential u.npy" "potential,gradient u.npz"; do
        read -r outputs name <<<"$out"
        # shellcheck disable=SC2086
        "$fmm" run $files --outputs "$outputs" --out "one-$name" >log
        # shellcheck disable=SC2086
        job 60 "$ranks" "$fmm" run $files --outputs "$outputs" --out "$name" --json --verify 100
        [ "$(grep -c '"ranks": *{' log)" = 1 ] || fail "the command on $ranks ranks prints no report"
        cmp "one-$name" "$name" || fail "$name of $ranks ranks is not that of one"
        rm "$name"
    done
done
job 60 3 "$fmm" run --demo ellipsoid --n 2000 --tolerance 1e-3 --out demo.npz
"$fmm" run --demo ellipsoid --n 2000 --tolerance 1e-3 --out one-demo.npz >log
cmp one-demo.npz demo.npz || fail "demo.npz of 3 ranks is not that of one"
job 15 4 "$fmm" run --sources p.npy --strengths nothing.npy --out never.npy
[ "$status" != 0 ] && [ "$(grep -c '^error: .*nothing.npy' log)" = 1 ] || fail "a missing file is not one error"
compgen -G '*never*' >/dev/null && fail "a failed run leaves a file"
echo "the command: well"

# Processes with emulated GPUs, which read each other's memory: the bits of one GPU, with trees of the GPUs and of the host, and
# more ranks than GPUs. The first run compiles for all.
emulator=$("$root/scripts/emulator.sh")
export FMM_EMULATOR_DEVICES=2
unset FMM_NVRTC CUDA_PATH
export LD_LIBRARY_PATH="$emulator${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
sum="--sources p.npy --strengths q.npy --order 4 --method equivalent --ncrit 60 --outputs potential,gradient"
sum="$sum --backend cuda --cache $folder/programs"
# shellcheck disable=SC2086
"$fmm" run $sum --out one-gpu.npz >log
for how in "--devices 0,1" "--devices 0,1 --arrays device --repeat 2" "--exchange frontier" "--exchange direct"; do
    # shellcheck disable=SC2086
    job 120 3 "$fmm" run $sum $how --out gpus.npz --verify 100
    [ "$status" = 0 ] || fail "3 ranks with GPUs, $how"
    [ "$how" = "--exchange direct" ] || cmp one-gpu.npz gpus.npz || fail "gpus.npz of 3 ranks, $how, is not that of one GPU"
    rm gpus.npz
done
echo "processes with GPUs: well"
printf 'scripts/mpi-tests.sh: everything is well (%s s)\n' "$SECONDS"
