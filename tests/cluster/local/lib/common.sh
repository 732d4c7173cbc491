# Places, addresses and small helpers that all parts share.
# shellcheck shell=bash disable=SC2034

PROJECT=$(cd "$HERE/../../.." && pwd)
ROOT=${CLRFLOW_CLUSTER:-${XDG_CACHE_HOME:-$HOME/.cache}/clrflow-cluster}
BIN=$ROOT/bin                  # the Go programs
PKI=$ROOT/pki                  # certificates and kubeconfigs
LOGS=$ROOT/log
PIDS=$ROOT/pid
IMAGES=$ROOT/images            # archives of the base images
SHARED=/mnt/clrflow-cluster    # what tests and pods see under one path; not below /root, which a pod without root may not enter
CRDS=$ROOT/crds
ADMIN=$PKI/admin.kubeconfig
MODULES=$HERE/modules

# Fixed addresses: one cluster a machine. The node and this machine are the two ends of one virtual cable, so plain clients reach node,
# pods and services from outside, and pods reach what a test serves on MACHINE_IP; they have no way to anywhere else.
NODE_IP=10.99.0.1
MACHINE_IP=10.99.0.254
POD_CIDR=10.85.0.0/16
SERVICE_CIDR=10.96.0.0/16
KUBERNETES_SERVICE_IP=10.96.0.1
MACHINE_LINK=clrflow0          # this machine's end of the cable
NODE_LINK=clrflow1
NODE_NAME=node1
CGROUP=clrflow-cluster
RUN=/run/clrflow-cluster       # a tmpfs that exists inside the sandbox only

export PATH=$BIN:/usr/local/go/bin:/usr/sbin:/sbin:$PATH

say() { printf 'cluster: %s\n' "$*"; }

# fail EXIT_CODE MESSAGE
fail() {
    printf 'cluster: error: %s\n' "$2" >&2
    exit "$1"
}

# phase NAME COMMAND...: run it, say how long it took; when it fails, show the end of what it printed.
phase() {
    local job
    background job "$@"
    await "$job" "$1"
}

# background VARIABLE NAME COMMAND...: a phase beside what comes next; await "$VARIABLE" NAME collects it. Always a background job: a subshell
# that is part of a condition would go on after an error.
background() {
    local -n job_handle=$1
    local name=$2 log
    log=$(log_of "$name")
    shift 2
    mkdir -p "$LOGS"
    set -m # a process group of its own, so that end_background reaches what it started
    (
        set +m
        "$@"
        echo "$SECONDS" >"$log.ended"
    ) >"$log" 2>&1 9>&- &
    job_handle="$! $SECONDS"
    set +m
}

# What still works when this script ends, because another part failed or somebody pressed Ctrl-C, has no purpose any more.
end_background() {
    local job
    for job in $(jobs -p); do
        kill -TERM -- "-$job" 2>/dev/null || true
    done
}

await() {
    local pid=${1% *} start=${1#* } name=$2 log
    log=$(log_of "$name")
    if ! wait "$pid"; then
        tail -n 30 "$log" >&2
        fail 1 "phase '$name' failed after $((SECONDS - start)) s; its whole output is in $log"
    fi
    printf 'cluster: %-22s %4d s\n' "$name" $(($(<"$log.ended") - start))
}

log_of() { printf '%s/phase-%s.log' "$LOGS" "${1// /-}"; }

# wait_for SECONDS WHAT COMMAND...: until the command succeeds.
wait_for() {
    local limit=$1 what=$2 deadline=$((SECONDS + $1))
    shift 2
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < deadline)) || fail 1 "no $what after $limit s; logs are in $LOGS"
        sleep 0.1
    done
}

# The lock's file descriptor is closed in everything that lives on (9>&-), so it goes with this script and not with the cluster.
take_lock() {
    mkdir -p "$ROOT"
    exec 9>"$ROOT/.lock"
    flock --nonblock 9 || fail 1 "another 'cluster' command is at work on $ROOT; wait for it to end"
}

sandbox_pid() { cat "$PIDS/init" 2>/dev/null; }

is_up() {
    local pid
    pid=$(sandbox_pid) || return 1
    [[ -d /proc/$pid ]] && kubectl --kubeconfig "$ADMIN" --request-timeout=5s get --raw /readyz >/dev/null 2>&1
}

# Run something inside the sandbox.
in_node() { nsenter --target "$(sandbox_pid)" --net --mount --uts --pid -- "$@"; }

# start NAME COMMAND...: in the background inside the sandbox, with a log; it ends with the sandbox. The process id that is noted is
# that of this machine, and is the program's own after nsenter's fork, so `restart` can end it.
start() {
    local name=$1
    shift
    printf '%s\n' "$@" >"$PIDS/$name.command"
    # In a session of its own: whoever brings the cluster up may end, with all of its own session. There is memory enough for Go's programs
    # to clean up less often.
    GOGC=400 setsid nsenter --target "$(sandbox_pid)" --net --mount --uts --pid -- "$@" </dev/null >>"$LOGS/$name.log" 2>&1 9>&- &
    echo $! >"$PIDS/$name"
    disown $! # so that end_background leaves it alone
}

kube() { kubectl --kubeconfig "$ADMIN" "$@"; }

node_ctr() { in_node ctr --address "$RUN/containerd.sock" --namespace k8s.io "$@"; }

# render FILE: a configuration with this cluster's places in it.
render() {
    sed -e "s#@ROOT@#$ROOT#g" -e "s#@RUN@#$RUN#g" -e "s#@NODE_IP@#$NODE_IP#g" -e "s#@POD_CIDR@#$POD_CIDR#g" \
        -e "s#@NODE_NAME@#$NODE_NAME#g" -e "s#@CGROUP@#$CGROUP#g" "$HERE/config/$1"
}

# module_folder MODULE PATH: where the sources of a Go module lie, once they are downloaded.
module_folder() { (cd "$MODULES/$1" && go list -m -f '{{.Dir}}' "$2"); }

# stamped NAME TEXT COMMAND...: run the command unless it succeeded before for the same text.
stamped() {
    local stamp=$ROOT/stamps/$1 text=$2
    shift 2
    mkdir -p "$ROOT/stamps"
    [[ -f $stamp && $(<"$stamp") == "$text" ]] && return
    "$@"
    printf '%s' "$text" >"$stamp"
}
