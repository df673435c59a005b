#!/usr/bin/env bash
# Builds the strategy of this directory: build.sh [FILE.wasm]. Needs python3 with venv; what it installs is kept under
# ${DRACPU_CACHE:-~/.cache/dracpu}.
set -euo pipefail

VERSION=0.25.1
here=$(cd "$(dirname "$0")" && pwd)
tools=${DRACPU_CACHE:-$HOME/.cache/dracpu}/componentize-py-$VERSION
[ -x "$tools/bin/componentize-py" ] || {
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet "componentize-py==$VERSION"
}
# Python's runtime would ask for files, clocks and randomness, which no strategy gets: --stub-wasi takes them out.
"$tools/bin/componentize-py" --wit-path "$here/../../wit" --world strategy \
    componentize --stub-wasi --python-path "$here" --output "${1:-$here/spread-over-caches.wasm}" app
