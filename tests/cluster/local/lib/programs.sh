# The Go programs. Versions and checksums are in modules/NAME/go.mod and go.sum. Compiling takes most of the time that a first cluster takes, so
# programs that can agree on the libraries of Kubernetes are in one module, which compiles those once.
# shellcheck shell=bash

KUBERNETES_VERSION=1.36.3
KUBERNETES_PROGRAMS=(kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl kube-proxy)

build_programs() {
    mkdir -p "$BIN" "$LOGS"
    # Linked without it, every program calls itself v0.0.0-master and clients refuse to talk to it.
    local stamp="" package
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        stamp+=" -X $package.gitVersion=v$KUBERNETES_VERSION -X $package.gitMajor=1 -X $package.gitMinor=${KUBERNETES_VERSION:2:2}"
        stamp+=" -X $package.gitTreeState=clean"
    done
    build_module kubernetes "$stamp" "${KUBERNETES_PROGRAMS[@]/#/k8s.io/kubernetes/cmd/}" sigs.k8s.io/kwok/cmd/kwok ./coredns \
        go.etcd.io/etcd/server/v3
    build_module training-operator "" github.com/kubeflow/training-operator/cmd/training-operator.v1
}

# build_module NAME LINKER_FLAGS PACKAGE...
build_module() {
    local name=$1 flags=$2 start=$SECONDS
    shift 2
    local inputs
    inputs="$(find "$MODULES/$name" -type f | sort | xargs cat | sha256sum) $(go env GOVERSION) $flags $*"
    stamped "program-$name" "$inputs" compile "$name" "$flags" "$@"
    echo "$name: $((SECONDS - start)) s"
}

compile() {
    local name=$1 flags=$2 out=$BIN/.new-$1
    shift 2
    rm -rf "$out"
    mkdir -p "$out"
    # Nobody debugs these programs, and the compiler has memory enough not to clean up after itself so often. Without inlining it needs a
    # quarter less time; what the programs compute most with (standard library, merging and encoding of objects) keeps it.
    (cd "$MODULES/$name" && CGO_ENABLED=0 GOGC=400 GOFLAGS="${GOFLAGS:-} -mod=readonly" \
        go build "-gcflags=all=-dwarf=false -l" -gcflags={std,k8s.io/apimachinery/...,sigs.k8s.io/...,google.golang.org/protobuf/...}=-dwarf=false \
        -ldflags="-s -w $flags" -o "$out/" "$@")
    # Go names a program after the last part of its package's path that isn't a version.
    rename_program "$out" server etcd
    rename_program "$out" training-operator.v1 training-operator
    mv "$out"/* "$BIN/" # in one move a program: a running one keeps its file
    rmdir "$out"
}

# rename_program FOLDER NAME NEW: if it is there.
rename_program() {
    [[ ! -f $1/$2 ]] || mv "$1/$2" "$1/$3"
}
