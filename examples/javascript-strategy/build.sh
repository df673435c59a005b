#!/usr/bin/env bash
# Builds the strategy of this directory: build.sh [FILE.wasm]. Needs node 20 or newer with npm; what it installs is kept
# under ${DRACPU_CACHE:-~/.cache/dracpu}.
set -euo pipefail

VERSION=0.23.0
here=$(cd "$(dirname "$0")" && pwd)
tools=${DRACPU_CACHE:-$HOME/.cache/dracpu}/componentize-js-$VERSION
[ -x "$tools/node_modules/.bin/componentize-js" ] || {
    mkdir -p "$tools"
    npm install --prefix "$tools" --ignore-scripts --no-audit --no-fund --loglevel=error "@bytecodealliance/componentize-js@$VERSION"
}
# JavaScript's runtime would ask for clocks, randomness and the network, which no strategy gets: --disable takes them out.
"$tools/node_modules/.bin/componentize-js" "$here/strategy.js" --wit "$here/../../wit" --world-name strategy \
    --disable random stdio clocks http fetch-event --out "${1:-$here/emptiest-node.wasm}"
