#!/usr/bin/env bash
# The tests that read a clock. They belong on a machine that does nothing else, and run one at a time. No merge waits for them.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo test --release -p backend-cpu --test it -- --ignored --nocapture --test-threads 1 rates::
cargo test --release -p fmm-cli --test it -- --ignored --nocapture --test-threads 1 timing::
