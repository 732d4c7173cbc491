# What the machine must be, said before anything is changed.
# shellcheck shell=bash

PACKAGES=(
    containerd runc containernetworking-plugins iproute2 iptables nftables # the node
    debootstrap buildah                                                    # images
    gcc libc6-dev                                                          # pause, a small C program
    openssl jq util-linux                                                  # certificates, scripts
)

require_machine() {
    local without="use any other cluster instead: KUBECONFIG=/path/to/kubeconfig make test-cluster"
    [[ $(uname -s) == Linux ]] || fail 2 "the local cluster needs Linux, this is $(uname -s); $without"
    [[ $(id -u) == 0 ]] || fail 2 "the local cluster makes namespaces, mounts and a network link and so needs root, this is $(id -un); run it as root, or $without"
    command -v apt-get >/dev/null || fail 2 "the local cluster takes containerd and runc from Debian packages, but there is no apt-get here; $without"
    command -v go >/dev/null || fail 2 "the local cluster compiles Kubernetes, but there is no go on PATH; install Go 1.26 or newer, or $without"
    [[ -d /sys/fs/cgroup/memory ]] || fail 2 "the local cluster knows cgroup v1 only and /sys/fs/cgroup/memory isn't here; $without (kind runs on cgroup v2)"
    local free_kb
    mkdir -p "$ROOT"
    free_kb=$(df --output=avail "$ROOT" | tail -n 1)
    [[ -d $BIN ]] || ((free_kb > 30000000)) || fail 2 "the local cluster needs 30 GB below $ROOT, but only $((free_kb / 1000000)) GB are free; set CLRFLOW_CLUSTER to a folder on a larger disk, or $without"
}

# Another cluster, or something else, may own the addresses.
refuse_taken_address() {
    local holder
    holder=$(ip -oneline address show to "$MACHINE_IP" | awk '{print $2}')
    [[ -z $holder ]] || fail 1 "address $MACHINE_IP, which the cluster needs, is held by the network link $holder; if that is left from a cluster, end it with: tests/cluster/local/cluster down (with its CLRFLOW_CLUSTER)"
    for range in "$POD_CIDR" "$SERVICE_CIDR"; do
        [[ -z $(ip route show "$range") ]] || fail 1 "there is a route to $range already, which the cluster needs for itself; remove it, or use another machine"
    done
}

install_packages() {
    local missing=() package
    for package in "${PACKAGES[@]}"; do
        dpkg-query --show --showformat='${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^ii' || missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    echo "missing: ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null
}
