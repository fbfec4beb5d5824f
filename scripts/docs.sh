#!/usr/bin/env bash
# Builds the documentation site of the Python package into target/python-docs, after `scripts/python.sh` has built the
# package. Every example runs and asserts its error, and so does every code block of the pages. Takes some minutes, so it
# is not part of .ci/run. Sphinx and its extensions are installed into target/python-venv. PyTorch and JAX are not: their
# examples run if they are installed there.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
python="${FMM_DOCS_PYTHON:-$root/target/python-venv/bin/python}"
if [ ! -x "$python" ] || [ ! -e python/fmm/_core.abi3.so ]; then
    echo "scripts/docs.sh: run scripts/python.sh first" >&2
    exit 1
fi
"$python" -m pip install -q --disable-pip-version-check scipy matplotlib sphinx sphinx-gallery myst-parser furo
export PYTHONPATH="$root/python" MPLBACKEND=agg
out="$root/target/python-docs"
"$python" -m sphinx -q -W --keep-going -b doctest -D plot_gallery=0 python/docs "$out/doctest"
"$python" -m sphinx -q -W --keep-going -b html python/docs "$out/html"
echo "$out/html/index.html"
