# The first process of the sandbox: sets up what the node needs, then reaps orphans until it is killed.
# Called with: node name, run folder, node link, machine link, node address, machine address, cgroup.
set -euo pipefail
node_name=$1 run=$2 node_link=$3 machine_link=$4 node_ip=$5 machine_ip=$6 cgroup=$7

hostname "$node_name"
ip link set lo up

# Folders that containerd, the CNI plugins and the kubelet insist on: empty ones of the sandbox's own.
for folder in "$run" /run/netns /var/lib/cni /var/log/containers /var/lib/kubelet; do
    mkdir -p "$folder"
    mount -t tmpfs none "$folder"
done

ip link add "$node_link" type veth peer name "$machine_link"
ip address add "$node_ip/24" dev "$node_link"
ip link set "$node_link" up
ip route add default via "$machine_ip" dev "$node_link"

# The kubelet writes these machine-wide settings: plain files over them keep the machine's own as they are.
mkdir -p "$run/sysctl"
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    cover=$run/sysctl/$(tr / _ <<<"${setting%=*}")
    echo "${setting#*=}" >"$cover"
    mount --bind "$cover" "/proc/sys/${setting%=*}"
done

for controller in cpu cpuacct cpuset memory devices freezer blkio pids systemd; do
    mkdir -p "/sys/fs/cgroup/$controller/$cgroup"
done
for file in cpus mems; do # an empty cpuset takes no process
    cat "/sys/fs/cgroup/cpuset/cpuset.$file" >"/sys/fs/cgroup/cpuset/$cgroup/cpuset.$file"
done

touch "$run/ready"
while :; do
    sleep 3600 &
    wait $! || true
done
