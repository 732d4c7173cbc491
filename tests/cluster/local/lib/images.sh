# The node's own images (pause, base, operator) and the project's, built by buildah and handed to containerd without a copy.
# shellcheck shell=bash

BUILDAH_STORE=$ROOT/buildah/storage
PYTHON_BASE=localhost/python:3.11
archive() { python3 "$HERE/lib/oci_archive.py" "$@"; }

build_base_images() {
    mkdir -p "$IMAGES"
    stamped image-base "$(declare -f make_base)" make_base
}

# Debian, and the libraries that a Python of the machine needs when tests mount it into a pod.
make_base() {
    local folder=$ROOT/rootfs-base
    rm -rf "$folder"
    debootstrap --variant=minbase --include=ca-certificates,libssl3,libffi8,libsqlite3-0,libbz2-1.0,liblzma5,zlib1g,libreadline8,libgomp1,libexpat1,libuuid1,libncursesw6,iproute2 \
        bookworm "$folder"
    rm -rf "$folder"/var/cache/apt/archives/*.deb "$folder"/var/lib/apt/lists/* "$folder"/usr/share/{doc,man,locale}
    cp /etc/ssl/certs/ca-certificates.crt "$folder/etc/ssl/certs/ca-certificates.crt"
    # The operator's init container asks it whether the master's name is known yet.
    printf '#!/bin/sh\nexec getent hosts "$1"\n' >"$folder/usr/local/bin/nslookup"
    chmod +x "$folder/usr/local/bin/nslookup"
    archive "$folder" localhost/base:1 "$IMAGES/base.tar" /bin/sh
    rm -rf "$folder"
}

# These two hold what the Go modules bring, so they come after the programs.
make_pause() {
    local folder=$ROOT/rootfs-pause sources
    sources=$(module_folder kubernetes k8s.io/kubernetes)
    mkdir -p "$folder"
    gcc -Os -static -DVERSION=clrflow -o "$folder/pause" "$sources/build/pause/linux/pause.c"
    archive "$folder" localhost/pause:1 "$IMAGES/pause.tar" /pause
    rm -rf "$folder"
}

make_operator_image() {
    local folder=$ROOT/rootfs-operator
    mkdir -p "$folder"
    cp "$BIN/training-operator" "$folder/manager"
    archive "$folder" localhost/training-operator:1 "$IMAGES/training-operator.tar" /manager
    rm -rf "$folder"
}

import_base_images() {
    stamped image-pause "$KUBERNETES_VERSION" make_pause
    stamped image-operator "$(sha256sum "$BIN/training-operator")" make_operator_image
    local file
    for file in "$IMAGES"/*.tar; do
        node_ctr images import "$file"
    done
}

# In mounts of its own: buildah leaves its store mounted, and more when it is killed.
buildah_() {
    CONTAINERS_CONF=$HERE/config/containers.conf CONTAINERS_STORAGE_CONF=$ROOT/buildah/storage.conf \
        unshare --mount --propagation private buildah "$@"
}

build_images() {
    local target repository suffix start options=(--layers --isolation oci --network host)
    mkdir -p "$ROOT/buildah"
    printf '[storage]\ndriver = "overlay"\nrunroot = "%s/run"\ngraphroot = "%s"\n' "$ROOT/buildah" "$BUILDAH_STORE" >"$ROOT/buildah/storage.conf"
    # How this machine reaches its package index is its own matter: mounted for the build, in no layer.
    local file
    for file in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
        [[ ! -f $file ]] || options+=(--volume "$file:$file:ro")
    done
    stamped image-python "$(stat --format %Y "$IMAGES/base.tar")" make_python_base "${options[@]}"
    local revision
    revision=$(git -C "$PROJECT" rev-parse HEAD 2>/dev/null || echo unknown)
    while read -r target repository suffix; do
        start=$SECONDS
        buildah_ build "${options[@]}" --build-arg BASE="$PYTHON_BASE" --build-arg REVISION="$revision" --target "$target" \
            --tag "localhost/clrflow-$repository:$suffix" --file "$PROJECT/images/Dockerfile" "$@" "$PROJECT" </dev/null
        echo "$repository:$suffix: $((SECONDS - start)) s"
    done <"$PROJECT/images/targets.txt"
}

# Debian's own Python is 3.11: it stands in for python:3.11-slim-bookworm, which a machine without a registry can't have.
make_python_base() {
    buildah_ pull --quiet "oci-archive:$IMAGES/base.tar"
    buildah_ build "$@" --tag "$PYTHON_BASE" --file - "$ROOT/buildah" <<'EOF'
FROM localhost/base:1
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends python3 python3-venv python3-pip \
    && rm -rf /var/lib/apt/lists/* /usr/lib/python3.11/EXTERNALLY-MANAGED && ln -s python3 /usr/bin/python
EOF
}

load_images() {
    local target repository suffix
    while read -r target repository suffix; do
        share_layers "localhost/clrflow-$repository:$suffix" </dev/null
    done <"$PROJECT/images/targets.txt"
}

# Hard links don't cross mounts, so buildah's store, which any other buildah may have left mounted on itself, must not be one here.
share_layers() {
    unshare --mount --propagation private bash -c 'umount "$1" 2>/dev/null; shift; exec "$@"' - "$BUILDAH_STORE/overlay" \
        python3 "$HERE/lib/share_layers.py" "$BUILDAH_STORE" "$ROOT/shared-image.tar" "$1" -- \
        nsenter --target "$(sandbox_pid)" --net --mount --uts --pid -- ctr --address "$RUN/containerd.sock" --namespace k8s.io
}
