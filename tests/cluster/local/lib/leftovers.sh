# Proof that a cluster which went down left nothing behind.
# shellcheck shell=bash

check_leftovers() {
    local deadline=$((SECONDS + 10)) left
    while left=$(leftovers) && [[ -n $left ]] && ((SECONDS < deadline)); do
        sleep 0.2
    done
    [[ -z $left ]] || fail 1 "the cluster is down, but this is left of it:"$'\n'"$left"
    say "nothing is left: no process, mount, network link, route or cgroup"
}

leftovers() {
    # A program of the cluster is one that was started from its folders, or lives in another network namespace with its files.
    local process command
    for process in /proc/[0-9]*; do
        command=$(tr '\0' ' ' <"$process/cmdline" 2>/dev/null) || continue
        if [[ $command == *"$BIN/"* || $command == *"$RUN"* || $command == *"$ROOT/containerd"* || $command == *"$HERE/lib/sandbox.sh"* ]]; then
            [[ ${process#/proc/} == "$$" ]] || echo "process ${process#/proc/}: ${command:0:120}"
        fi
    done
    awk -v root="$ROOT/" -v run="$RUN" 'index($2, root) == 1 || index($2, run) == 1 {print "mount " $2}' /proc/mounts
    ip -oneline link show | awk -v a="$MACHINE_LINK" -v b="$NODE_LINK" -F '[ :@]+' '$2 == a || $2 == b {print "network link " $2}'
    for range in "$POD_CIDR" "$SERVICE_CIDR"; do
        ip route show "$range" | sed 's/^/route /'
    done
    [[ ! -e $SHARED ]] || echo "folder $SHARED"
    find /sys/fs/cgroup -maxdepth 2 -type d -name "$CGROUP" -printf 'cgroup %p\n'
}
