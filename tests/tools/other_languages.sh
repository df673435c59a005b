#!/usr/bin/env bash
# Projects of `dracpu strategy new` in other languages than Rust: written, built by their own scripts, and tried as every
# strategy. other_languages.sh DIRECTORY; the driver is $DRACPU_BIN. The components stay in the directory.
set -euo pipefail

directory=$1
mkdir -p "$directory"
cd "$directory"
for project in python:spread-over-caches javascript:emptiest-node; do
    language=${project%%:*} name=${project##*:}
    rm -rf "$name"
    "$DRACPU_BIN" strategy new "$name" --lang "$language"
    "$name/build.sh"
    "$DRACPU_BIN" strategy check "$name/$name.wasm" --cases 300
done
