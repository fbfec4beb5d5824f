#!/usr/bin/env bash
# Builds the Python package for the Python 3.11 or later on the path, and checks it: types (mypy, stubtest), tests, the
# examples of its README. Everything that the tests need is installed into target/python-venv. With WHEEL=1 it builds
# sdist and wheel instead, and runs the tests on the wheel that was built from the sdist. With FMM_PYTHON_MPI=1 the
# package has ranks over MPI (needs mpicc), and the tests run them. The packages of FMM_PYTHON_WITH, such as "jax torch",
# are installed too, and their tests run.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
venv="$root/target/python-venv"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
python="$venv/bin/python"
export PYO3_PYTHON="$python"
# The module finds Python in the process that imports it, as maturin builds it too.
export PYO3_BUILD_EXTENSION_MODULE=1
read -ra packages <<< "${FMM_PYTHON_WITH:-}"
features=()
if [ -n "${FMM_PYTHON_MPI:-}" ]; then
    packages+=(mpi4py) features=(--features fmm-python/mpi)
fi
# Python compiles of the packages what is imported.
install=(-m pip install -q --disable-pip-version-check --no-compile)
"$python" "${install[@]}" 'numpy>=1.26' scipy pytest mypy matplotlib "${packages[@]}"
cd python
if [ -n "${WHEEL:-}" ]; then
    "$python" "${install[@]}" 'maturin>=1.9,<2'
    rm -rf "$root/target/dist"
    "$venv/bin/maturin" sdist --out "$root/target/dist"
    clean=$(mktemp -d)
    trap 'rm -rf "$clean"' EXIT
    python3 -m venv "$clean/venv"
    CARGO_TARGET_DIR="$root/target" "$clean/venv/bin/python" -m pip wheel -q --no-deps --wheel-dir "$root/target/dist" \
        "$root"/target/dist/fmm-*.tar.gz
    wheel=$(ls "$root"/target/dist/fmm-*.whl)
    echo "$(stat -c %s "$wheel") bytes: $wheel"
    [ "$(stat -c %s "$wheel")" -le 40000000 ]
    "$clean/venv/bin/python" -m pip install -q "$wheel" pytest scipy matplotlib "${packages[@]}"
    cp -r tests README.md pyproject.toml "$clean"
    cd "$clean"
    "$clean/venv/bin/python" -m fmm.bench --only import
    "$clean/venv/bin/python" -m pytest -q tests
    exit
fi
# Features of shared dependencies follow from all that is selected. With the tests of the library selected too, crates are
# those that cargo test --workspace has compiled, which is what CI did before.
if [ -n "${CI:-}" ]; then
    cargo build --release --locked --workspace --lib --tests "${features[@]}"
else
    cargo build --release --locked -p fmm-python "${features[@]}"
fi
target="${CARGO_TARGET_DIR:-$root/target}"
case "$(uname)" in
Darwin) built=lib_core.dylib ;;
*) built=lib_core.so ;;
esac
rm -f fmm/_core.abi3.so # A process may use the old one.
cp "$target/release/$built" fmm/_core.abi3.so
export PYTHONPATH=$PWD
# Types, the README, and arrays on the emulated GPU.
others() {
    set -e
    "$python" -m mypy
    "$python" -m mypy.stubtest fmm._core --ignore-missing-stub
    "$python" -m doctest README.md
    if command -v "${CXX:-c++}" > /dev/null; then
        emulator=$("$root/scripts/emulator.sh")
        FMM_EMULATED_GPU=1 LD_LIBRARY_PATH="$emulator${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" env -u FMM_NVRTC -u CUDA_PATH \
            "$python" -m pytest -q -p no:cacheprovider tests/test_gpu_arrays.py tests/test_xla.py
    fi
}
# They run beside the tests, because each of the two uses one core most of the time.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
others > "$log" 2>&1 &
beside=$!
status=0
"$python" -m pytest -q -rs tests --doctest-modules fmm/_functions.py fmm/_plan.py fmm/own.py fmm/report.py fmm/__init__.py \
    fmm/compat/fmm3dpy.py fmm/compat/fmm2dpy.py "$@" || status=$?
wait "$beside" || status=$?
cat "$log"
exit "$status"
