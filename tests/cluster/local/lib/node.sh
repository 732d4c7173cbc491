# The node: a sandbox with containerd, etcd, the control plane, a kubelet, DNS and service addresses.
# shellcheck shell=bash

start_node() {
    stop_node
    make_certificates
    mkdir -p "$PIDS" "$LOGS" "$SHARED" "$ROOT/cni"
    chmod 755 "$SHARED"
    reserve_huge_pages
    start_sandbox
    start_containerd
    start_control_plane
    start_node_programs
    wait_for 60 "Ready node" node_is_ready
    wait_for 30 "default service account" kube get serviceaccount default
}

# Huge pages are the machine's, and the kubelet counts them once, at its start.
reserve_huge_pages() {
    [[ -n ${HUGEPAGES:-} ]] || return 0
    cat /proc/sys/vm/nr_hugepages >"$PIDS/nr_hugepages"
    echo "$HUGEPAGES" >/proc/sys/vm/nr_hugepages
}

# Own network, mounts, host name and process ids: ending its first process ends all others in it, and the kernel drops their mounts and links.
start_sandbox() {
    setsid unshare --net --mount --uts --pid --fork --kill-child --mount-proc --propagation private \
        bash "$HERE/lib/sandbox.sh" "$NODE_NAME" "$RUN" "$NODE_LINK" "$MACHINE_LINK" "$NODE_IP" "$MACHINE_IP" "$CGROUP" \
        >"$LOGS/sandbox.log" 2>&1 9>&- &
    local unshare=$!
    echo "$unshare" >"$PIDS/unshare"
    wait_for 5 "first process of the sandbox" grep -q . "/proc/$unshare/task/$unshare/children"
    tr -d ' ' <"/proc/$unshare/task/$unshare/children" >"$PIDS/init"
    wait_for 5 "sandbox" in_node test -e "$RUN/ready"

    nsenter --target "$(sandbox_pid)" --net -- ip link set "$MACHINE_LINK" netns $$
    ip address add "$MACHINE_IP/24" dev "$MACHINE_LINK"
    ip link set "$MACHINE_LINK" up
    ip route add "$POD_CIDR" via "$NODE_IP"
    ip route add "$SERVICE_CIDR" via "$NODE_IP"
}

start_containerd() {
    render containerd.toml >"$ROOT/containerd.toml"
    render 10-pods.conflist >"$ROOT/cni/10-pods.conflist"
    start containerd containerd --config "$ROOT/containerd.toml"
    wait_for 20 "containerd" node_ctr version
    import_base_images
}

start_control_plane() {
    start etcd "$BIN/etcd" --data-dir "$RUN/etcd" --unsafe-no-fsync --log-level warn \
        --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
    start kube-apiserver "$BIN/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 \
        --secure-port=6443 --advertise-address="$NODE_IP" --service-cluster-ip-range="$SERVICE_CIDR" \
        --tls-cert-file="$PKI/apiserver.crt" --tls-private-key-file="$PKI/apiserver.key" --client-ca-file="$PKI/ca.crt" \
        --kubelet-client-certificate="$PKI/admin.crt" --kubelet-client-key="$PKI/admin.key" \
        --kubelet-preferred-address-types=InternalIP \
        --service-account-issuer=https://kubernetes.default.svc \
        --service-account-key-file="$PKI/sa.pub" --service-account-signing-key-file="$PKI/sa.key" \
        --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true
    wait_for 60 "API server" kube get --raw /readyz
    # With its default client limits it takes 5 s until a new namespace has its service account, and pods are refused meanwhile.
    start kube-controller-manager "$BIN/kube-controller-manager" --kubeconfig="$PKI/kube-controller-manager.kubeconfig" \
        --use-service-account-credentials --service-account-private-key-file="$PKI/sa.key" --root-ca-file="$PKI/ca.crt" \
        --cluster-signing-cert-file="$PKI/ca.crt" --cluster-signing-key-file="$PKI/ca.key" \
        --leader-elect=false --kube-api-qps=300 --kube-api-burst=500 --bind-address=127.0.0.1
    start kube-scheduler "$BIN/kube-scheduler" --kubeconfig="$PKI/kube-scheduler.kubeconfig" \
        --leader-elect=false --kube-api-qps=300 --kube-api-burst=500 --bind-address=127.0.0.1
}

start_node_programs() {
    local file
    for file in kubelet.yaml kube-proxy.yaml Corefile; do
        render "$file" >"$ROOT/$file"
    done
    start kubelet "$BIN/kubelet" --config="$ROOT/kubelet.yaml" --kubeconfig="$PKI/kubelet-client.kubeconfig" \
        --root-dir="$ROOT/kubelet" --cert-dir="$ROOT/kubelet/pki" --node-ip="$NODE_IP" --hostname-override="$NODE_NAME"
    start coredns "$BIN/coredns" -conf "$ROOT/Corefile"
    start kube-proxy "$BIN/kube-proxy" --config="$ROOT/kube-proxy.yaml"
}

node_is_ready() { kube get node "$NODE_NAME" --no-headers | grep -q ' Ready'; }

# restart_program NAME: as a crash and a new start would; what it was started with is noted.
restart_program() {
    local name=$1 command
    [[ -f $PIDS/$name.command ]] || fail 2 "no program '$name' was started here; those that were: $(cd "$PIDS" && ls ./*.command | sed 's#^./##; s#.command$##' | paste -sd ' ')"
    end_program "$name"
    mapfile -t command <"$PIDS/$name.command"
    start "$name" "${command[@]}"
}

# What was noted is nsenter; the program is the last of its line of children.
end_program() {
    local noted program next
    noted=$(<"$PIDS/$1")
    [[ -d /proc/$noted ]] || return 0
    program=$noted
    while next=$(tr -d ' ' <"/proc/$program/task/$program/children") && [[ -n $next ]]; do program=$next; done
    kill -KILL "$program"
    wait_for 10 "end of $1" test ! -d "/proc/$noted"
}

stop_node() {
    local unshare init
    if unshare=$(cat "$PIDS/unshare" 2>/dev/null) && grep -qs sandbox.sh "/proc/$unshare/cmdline"; then
        init=$(sandbox_pid)
        kill -KILL "$init"
        wait_for 20 "end of the sandbox" test ! -d "/proc/$unshare"
    fi
    [[ ! -f $PIDS/nr_hugepages ]] || cat "$PIDS/nr_hugepages" >/proc/sys/vm/nr_hugepages
    rm -rf "$PIDS" "$ROOT/kubelet"
    rm -rf "$SHARED"
    # A cgroup goes when its last process has gone, which the kernel takes a moment to notice.
    wait_for 10 "empty cgroups" remove_cgroups
}

remove_cgroups() {
    local folder
    for folder in /sys/fs/cgroup/*/"$CGROUP"; do
        [[ ! -d $folder ]] || find "$folder" -depth -type d -exec rmdir {} \;
        [[ ! -d $folder ]] || return 1
    done
}
