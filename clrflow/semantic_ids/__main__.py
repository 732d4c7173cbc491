"""One process of the training: `torchrun … -m clrflow.semantic_ids FOLDER` (processes.py writes the folder and starts this)."""

from __future__ import annotations

import os
import sys
import traceback


def main() -> int:
    """Take part; returns the exit code, by which the launcher tells bad input from a failure."""
    from clrflow.launch.torchrun import tell_end, worker_begins

    worker_begins()  # before torch's seconds of import
    import torch
    import torch.distributed as dist

    from clrflow.errors import BadInput, ClrflowError
    from clrflow.semantic_ids.processes import take_part
    from clrflow.semantic_ids.team import Team

    try:
        rank, processes = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        on_gpu = torch.cuda.is_available()
        if on_gpu:
            if torch.cuda.device_count() < processes:
                raise BadInput(
                    f"semantic_ids.num_processes={processes}, but this machine has {torch.cuda.device_count()} GPU(s), and each process needs one of "
                    "its own; lower it, or hide the GPUs with CUDA_VISIBLE_DEVICES= to train on the CPU."
                )
            torch.cuda.set_device(rank)
        dist.init_process_group("nccl" if on_gpu else "gloo")
        take_part(sys.argv[1], torch.device("cuda", rank) if on_gpu else torch.device("cpu"), Team.of_group())
        dist.barrier()
        dist.destroy_process_group()
        return 0
    except ClrflowError as error:
        tell_end(error.exit_code, error)
        return error.exit_code
    except Exception:
        traceback.print_exc()
        return 1


if __name__ == "__main__":
    sys.exit(main())
