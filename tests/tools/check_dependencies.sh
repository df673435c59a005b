#!/usr/bin/env bash
# Two rules of the design that Cargo.toml alone does not show:
#  - the daemon links no allocation algorithm: built-in strategies reach it as component bytes only;
#  - topology, ledger, codec and the algorithms build and are tested without wasmtime, kube and tonic.
set -euo pipefail

tree() { cargo tree --quiet --locked --edges normal --prefix none --format '{p}' "$@" | cut -d' ' -f1 | sort -u; }

status=0
linked=$(tree -p dracpu | grep -E '^dracpu-strategy-(packed|external|llc-first)$' || true)
if [ -n "$linked" ]; then
    echo "the daemon links an algorithm: $linked; load it as a component instead" >&2
    status=1
fi
for crate in dracpu-cpuset dracpu-topology dracpu-ledger dracpu-codec dracpu-strategy-sdk \
    dracpu-strategy-packed dracpu-strategy-external dracpu-strategy-llc-first; do
    heavy=$(tree -p "$crate" | grep -E '^(wasmtime|kube|tonic)$' || true)
    if [ -n "$heavy" ]; then
        echo "$crate depends on $heavy" >&2
        status=1
    fi
done
exit $status
