"""A job that asked for EFA is told from one that fell back to sockets by what NCCL says."""

from __future__ import annotations

import pytest

from clrflow.launch.cluster.transport import TransportCheck, is_chatter

HOST = "node-1:71:71 [0] NCCL INFO "


def read(*lines: str) -> str:
    check = TransportCheck()
    for line in lines:
        check.read(line)
    return check.problem


def test_efa_is_what_was_asked_for() -> None:
    assert not read(
        HOST + "Bootstrap : Using eth0:10.0.0.1<0>",
        HOST + "NET/OFI Initializing aws-ofi-nccl 1.16.3",
        HOST + "NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)",
        HOST + "Using network Libfabric",
        HOST + "ncclCommInitRankConfig comm 0x1 rank 0 nranks 16 - Init COMPLETE",
    )


@pytest.mark.parametrize("line", ["NET/Socket : Using [0]eth0:10.0.0.1<0>", "Using network Socket"])
def test_sockets_are_a_problem(line: str) -> None:
    assert "NCCL took sockets" in read(HOST + "NET/IB : No device found.", HOST + line)


def test_another_provider_than_efa_is_a_problem() -> None:
    assert "provider 'tcp;ofi_rxm'" in read(HOST + "NET/OFI Selected Provider is tcp;ofi_rxm (found 1 nics)")


def test_being_ready_without_the_plugin_is_a_problem() -> None:
    assert "no NET/OFI line" in read(HOST + "ncclCommInitRank comm 0x1 rank 0 nranks 16 - Init COMPLETE")


def test_a_job_that_says_nothing_of_nccl_yet_is_no_problem() -> None:
    assert not read("train: 1,000 requests", "epoch 1/3: step 10")


def test_only_the_choice_of_network_is_shown_of_what_nccl_says() -> None:
    assert is_chatter(HOST + "Channel 00/16 : 0 1 2 3")
    assert not is_chatter(HOST + "Using network Libfabric")
    assert not is_chatter("co_train epoch 1/3: step 10")
