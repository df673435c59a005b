#!/usr/bin/env bash
# What a guest needs beside the cluster's own parts: QEMU, installed, and a kernel, unpacked from its package into the
# cache and never installed. Half a minute; 130 MB of the kernel stay.
set -euo pipefail
. "$(dirname "$0")/../versions.sh"
"$CLUSTER_SRC/lib/apt.sh" qemu-system-x86_64:qemu-system-x86 mke2fs:e2fsprogs
[ -d "$PARTS/guest-kernel" ] && exit

say "fetching a kernel for guests"
mkdir -p "$PARTS"
scratch=$(mktemp -d "$PARTS/build.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
# The metapackage names the kernel of the day.
fetch() { apt-get download -qq "$(apt-cache depends linux-image-cloud-amd64 | awk '$1 == "Depends:" && $2 ~ /^linux-image-/ { print $2; exit }')"; }
fetch 2>/dev/null || { apt-get update -qq && fetch; } || die "the package linux-image-cloud-amd64 cannot be fetched"
dpkg-deb -x ./*.deb root
mkdir kernel
mv root/boot/vmlinuz-* kernel/vmlinuz
for module in $GUEST_MODULES; do
    find root -name "$module.ko*" -exec mv {} kernel/ \;
done
mv kernel "$PARTS/guest-kernel"
