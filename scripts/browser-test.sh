#!/usr/bin/env bash
# The test of the page of `fmm compare` in headless Chromium. Installs Chromium with apt-get where there is none (as root, else with sudo).
set -euo pipefail
cd "$(dirname "$0")/.."
installed() {
    for name in chromium chromium-browser google-chrome google-chrome-stable; do
        # On some systems the package is a stub that only says how to install it: the browser has to answer.
        if "$name" --version >/dev/null 2>&1; then return 0; fi
    done
    return 1
}
if ! installed; then
    root=()
    [ "$(id -u)" = 0 ] || root=(sudo)
    "${root[@]}" apt-get update -q
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends chromium fonts-dejavu-core
    installed || { echo "scripts/browser-test.sh: apt-get installed no Chromium that answers --version" >&2; exit 1; }
fi
cargo test --release -p fmm-cli --test it -- --ignored page::
