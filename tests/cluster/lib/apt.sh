#!/usr/bin/env bash
# Installs what is missing of Debian's packages: apt.sh COMMAND-OR-FILE:PACKAGE...
# As another user than root it only says what to install.
set -euo pipefail

missing=()
for pair in "$@"; do
    what=${pair%%:*}
    [[ $what == /* && -e $what ]] || command -v "$what" >/dev/null || missing+=("${pair#*:}")
done
[ "${#missing[@]}" -eq 0 ] && exit 0
if [ "$(id -u)" -ne 0 ]; then
    echo "cluster: missing: ${missing[*]}; as root: apt-get install ${missing[*]}" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install -y --no-install-recommends -qq "${missing[@]}" >/dev/null; }
install || { apt-get update -qq && install; }
