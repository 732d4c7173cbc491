"""Which device a process of the training job works on, and how its group talks: a GPU each where there are GPUs, else the CPU."""

from __future__ import annotations

import os

import torch

from clrflow.errors import BadInput


def training_device() -> torch.device:
    """The GPU with this process's local rank, or the CPU on a machine without GPUs; more processes than GPUs are refused."""
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not num_gpus:
        return torch.device("cpu")
    local_rank, local_world_size = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if local_world_size > num_gpus:
        raise BadInput(
            f"training.num_processes puts {local_world_size} processes on a node that has {num_gpus} GPU(s), and each needs one of its own; lower it "
            "to the GPUs of all nodes, or hide the GPUs with CUDA_VISIBLE_DEVICES= to train on the CPU."
        )
    return torch.device("cuda", local_rank)


def group_backend(device: torch.device) -> str:
    """Collectives of tables and towers run where these are; small agreements (stop signals, figures) are made on the CPU."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "cpu:gloo"
