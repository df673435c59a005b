# Building with Go for the cache. Sourced, after versions.sh.

# A temporary directory for one build, removed at its end: Go's build cache for Kubernetes takes 4 GB and serves no
# second build. The module cache stays where Go keeps it.
go_begin() {
    PATH=$PATH:/usr/local/go/bin
    command -v go >/dev/null || die "go is missing; put Go 1.21 or newer on PATH or under /usr/local/go (it fetches a newer one by itself)"
    mkdir -p "$PARTS"
    GOTMP=$(mktemp -d "$PARTS/build.XXXXXX")
    trap 'rm -rf "$GOTMP"' EXIT
    mkdir "$GOTMP/tmp"
    export GOCACHE=$GOTMP/cache GOTMPDIR=$GOTMP/tmp CGO_ENABLED=0
    # A newer Go is fetched when a module asks for one, whatever this machine's default says.
    export GOTOOLCHAIN=auto GOFLAGS="-buildvcs=false -p=2"
}

# go_field MODULE@VERSION FIELD: a field of what `go mod download -json` prints: Dir, GoMod.
go_field() { go mod download -json "$1" | sed -n "s/^\s*\"$2\": \"\(.*\)\".*/\1/p"; }

# go_copy MODULE@VERSION: a writable copy of the module, and go there. Building inside it, rather than by
# `go install MODULE@VERSION`, keeps its own replace and exclude lines and checks its own go.sum.
go_copy() {
    local dir
    dir=$(go_field "$1" Dir)
    [ -n "$dir" ] || die "$1 cannot be downloaded"
    cp -r "$dir" "$GOTMP/src"
    chmod -R u+w "$GOTMP/src"
    cd "$GOTMP/src"
}

# keep FILES... DIRECTORY: into the cache in one step, so that a broken build never looks like a finished one.
keep() {
    local to=${*: -1}
    rm -rf "$to.new" "$to"
    mkdir "$to.new"
    mv "${@:1:$#-1}" "$to.new"
    mv "$to.new" "$to"
    say "built $(basename "$to")"
}
