#!/usr/bin/env bash
# Writes the images of the test cluster as OCI archives, DIRECTORY/NAME.tar: build.sh DIRECTORY
#   pause   localhost/dracpu-test/pause:1   the sandbox of every pod
#   tools   localhost/dracpu-test/tools:1   busybox, for the pods of tests
# Half a second; written anew for every cluster.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd)
"$here/../lib/apt.sh" gcc:gcc busybox:busybox-static

gcc -O2 -static -s -o "$out/pause" "$here/pause.c"
python3 "$here/mkimage.py" "$out/pause.tar" localhost/dracpu-test/pause:1 --entry /pause "/pause=$out/pause"
rm "$out/pause"

mapfile -t applets < <(busybox --list | grep -vx busybox | sed 's|.*|/bin/&->busybox|')
python3 "$here/mkimage.py" "$out/tools.tar" localhost/dracpu-test/tools:1 --cmd /bin/sh \
    "/bin/busybox=$(command -v busybox)" tmp/ etc/ "${applets[@]}"
