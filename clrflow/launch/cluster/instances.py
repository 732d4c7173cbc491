"""EC2 instance types with EFA: what a node of each offers, so that a pod asks for exactly one node.

Counts of EFA devices differ between types of one family, and asking for too many leaves pods pending for ever. The manifests' node pools
are held against this table by a test.
"""

from __future__ import annotations

import dataclasses
import difflib
import math

GPU, EFA, HUGE_PAGES = "nvidia.com/gpu", "vpc.amazonaws.com/efa", "hugepages-2Mi"
INSTANCE_LABEL, ZONE_LABEL = "node.kubernetes.io/instance-type", "topology.kubernetes.io/zone"
NETWORK_LAYER_LABEL = "topology.k8s.aws/network-node-layer-"
"""With 1, 2 or 3 after it, 3 nearest to the node."""


@dataclasses.dataclass(frozen=True)
class Instance:
    """One instance type; memory in GiB, huge pages in MiB."""

    gpus: int
    efa: int
    vcpus: int
    memory_gib: int
    huge_pages_mib: int = 5120
    """Pages of 2 MiB that the node must reserve at boot for EFA's buffers; a pod asks for all of them."""

    def pod_resources(self, *, efa: bool) -> dict[str, str]:
        """What the one pod of a node asks for: all GPUs, with `efa` all EFA devices and huge pages, most of the cores and memory.

        A tenth of the cores and 15 % of the memory are left to the kubelet, the device plugins and the node's other agents.
        """
        memory_gib = math.floor(self.memory_gib * 0.85) - (math.ceil(self.huge_pages_mib / 1024) if efa else 0)
        resources = {"cpu": str(math.floor(self.vcpus * 0.9)), "memory": f"{memory_gib}Gi", GPU: str(self.gpus)}
        return {**resources, EFA: str(self.efa), HUGE_PAGES: f"{self.huge_pages_mib}Mi"} if efa else resources


INSTANCES: dict[str, Instance] = {
    "p4d.24xlarge": Instance(gpus=8, efa=4, vcpus=96, memory_gib=1152),
    "p4de.24xlarge": Instance(gpus=8, efa=4, vcpus=96, memory_gib=1152),
    "p5.4xlarge": Instance(gpus=1, efa=1, vcpus=16, memory_gib=256),
    "p5.48xlarge": Instance(gpus=8, efa=32, vcpus=192, memory_gib=2048),
    "p5e.48xlarge": Instance(gpus=8, efa=32, vcpus=192, memory_gib=2048),
    "p5en.48xlarge": Instance(gpus=8, efa=16, vcpus=192, memory_gib=2048),
    "p6-b200.48xlarge": Instance(gpus=8, efa=8, vcpus=192, memory_gib=2048),
    "p6-b300.48xlarge": Instance(gpus=8, efa=16, vcpus=192, memory_gib=4096),
    "g4dn.8xlarge": Instance(gpus=1, efa=1, vcpus=32, memory_gib=128),
    "g5.48xlarge": Instance(gpus=8, efa=1, vcpus=192, memory_gib=768),
    "g6e.24xlarge": Instance(gpus=4, efa=2, vcpus=96, memory_gib=768),
    "g6e.48xlarge": Instance(gpus=8, efa=4, vcpus=192, memory_gib=1536),
}


def closest_instances(name: str) -> list[str]:
    """Known types that look like a misspelt one; all of them if none does."""
    return difflib.get_close_matches(name, INSTANCES, n=3) or list(INSTANCES)
