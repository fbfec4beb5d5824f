#!/bin/sh
# What scripts/gpu-bundle.sh packed, on a machine with a GPU. Without one every test reports `ignored`, none passes.
#   ./run.sh              the tests
#   ./run.sh PART …       tests with these parts in their names
#   ./run.sh sanitize     memcheck of the tests, racecheck of those of stages (compute-sanitizer of the CUDA toolkit)
#   ./run.sh bench        rates of all phases, minutes; ./device_rates direct|tree|far|large|huge for parts
#   ./run.sh door         times through the command, beside the times to reach (needs python3)
#   ./run.sh papers       the tables of papers/
# `./fmm doctor` says what the machine offers; `./fmm run --backend cuda --verify 1000` runs the showcase there.
set -eu
cd "$(dirname "$0")"
case "${1:-}" in
sanitize)
    sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
    "$sanitizer" --tool memcheck --error-exitcode 9 ./gpu-tests topology::two errors::bad far::each far::every_cloud limits::m2l direct::
    "$sanitizer" --tool racecheck --error-exitcode 9 ./gpu-tests far::each limits::m2l_in_parts_is
    ;;
bench) ./fmm doctor && ./device_rates ;;
door) python3 gpu.py --fmm ./fmm --csv front-door.csv ;;
papers) ./papers goude2012 && ./papers gumerov2008 && ./papers lashuk2009 ;;
*) exec ./gpu-tests "$@" ;;
esac
