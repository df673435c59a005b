#!/usr/bin/env bash
# Builds kubelab, a whole Kubernetes in one binary, from Go modules, unless this version is cached.
# Six minutes on two cores from nothing, 3.3 GB of memory, 4 GB of temporary disk; 157 MB stay.
set -euo pipefail
. "$(dirname "$0")/../versions.sh"
. "$CLUSTER_SRC/lib/go.sh"

[ -d "$PARTS/kubelab-$KUBE_VERSION" ] && exit 0
say "building Kubernetes $KUBE_VERSION: some minutes, once"
go_begin

mkdir "$GOTMP/src" "$GOTMP/bin"
cd "$GOTMP/src"
cp "$CLUSTER_SRC/kubelab/main.go" .

# Kubernetes requires its own staging modules as v0.0.0 and replaces them by directories of its repository. As a
# dependency it needs their published versions instead: v0.37.2 belongs to v1.37.2.
module=k8s.io/kubernetes@v$KUBE_VERSION
staging=v0.${KUBE_VERSION#1.}
requirements=$(go_field "$module" GoMod)
[ -n "$requirements" ] || die "$module cannot be downloaded"
{
    sed -e 's/^module .*/module kubelab/' -e '/^replace (/,/^)/d' -e '/^\/\//d' \
        -e "s#\(k8s.io/[a-z-]*\) v0.0.0\( .*\)\?\$#\1 $staging\2#" "$requirements"
    echo "require k8s.io/kubernetes v$KUBE_VERSION"
    echo 'replace ('
    sed -n '/^replace (/,/^)/p' "$requirements" | sed -n "s#^\s*\(k8s.io/[a-z-]*\) => ./staging/.*#\t\1 => \1 $staging#p"
    echo ')'
} >go.mod
cp "$(go_field "$module" Dir)/go.sum" .

v=k8s.io/component-base/version
minor=${KUBE_VERSION#*.}
go build -mod=mod -trimpath -o "$GOTMP/bin/kubelab" -ldflags "-s -w -X $v.gitVersion=v$KUBE_VERSION -X $v.gitMajor=1 \
    -X $v.gitMinor=${minor%%.*} -X $v.gitTreeState=clean -X $v.gitCommit=test-cluster" .
for program in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl; do
    ln -s kubelab "$GOTMP/bin/$program"
done
keep "$GOTMP"/bin/* "$PARTS/kubelab-$KUBE_VERSION"
