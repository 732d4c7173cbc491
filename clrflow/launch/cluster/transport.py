"""Did NCCL take EFA? A job that asked for it and runs over sockets works, at a tenth of the speed, and nobody notices: so it fails.

NCCL_DEBUG=INFO (see pods.py) makes each rank's log say which network it took.
"""

from __future__ import annotations

import re

_SOCKETS = re.compile(r"NCCL INFO .*(NET/Socket|Using network Socket)")
_OFI = re.compile(r"NCCL INFO .*(NET/OFI|Using network (AWS )?Libfabric)")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is (?P<name>[\w;]+)")
_READY = re.compile(r"NCCL INFO .*Init COMPLETE")
_REMEDY = (
    "Check that the image has the OFI plugin (aws-ofi-nccl) and libfabric with the efa provider, that the pods got vpc.amazonaws.com/efa devices, "
    "and that the security group lets its own members through; or ask for launch.transport=tcp."
)


class TransportCheck:
    """Reads a rank's log; `problem` is a sentence once the log shows another network than EFA, "" until then."""

    def __init__(self) -> None:
        self.problem = ""
        self._uses_ofi = False

    def read(self, line: str) -> None:
        if self.problem or ("NCCL" not in line and "NET/" not in line):
            return
        provider = _PROVIDER.search(line)
        if provider and not provider["name"].startswith("efa"):
            self.problem = f"libfabric took the provider {provider['name']!r}, not efa. {_REMEDY}"
        elif _SOCKETS.search(line):
            self.problem = f"NCCL took sockets (its log says `{line.strip()[-120:]}`). {_REMEDY}"
        elif _OFI.search(line):
            self._uses_ofi = True
        elif _READY.search(line) and not self._uses_ofi:
            self.problem = f"NCCL is ready, but its log has no NET/OFI line. {_REMEDY}"


def is_chatter(line: str) -> bool:
    """NCCL's lines that nobody needs in the step's log; which network it took stays."""
    return "NCCL INFO" in line and "Using network" not in line and "NET/OFI Selected" not in line
