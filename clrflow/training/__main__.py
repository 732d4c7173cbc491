"""One process of the training job: `torchrun … -m clrflow.training SPEC.json` (launch/ writes the spec and starts this)."""

from __future__ import annotations

import os
import sys
import traceback
import warnings


def main() -> int:
    """Run the job; returns the exit code, by which the launcher tells bad input from a failure."""
    warnings.filterwarnings("ignore")  # torchrec and DCP warn at each start about things that nobody here can change
    from clrflow.launch.lease import LEASE
    from clrflow.launch.torchrun import tell_end, worker_begins

    worker_begins()  # before torch's seconds of import
    import torch
    import torch.distributed as dist

    from clrflow import storage
    from clrflow.errors import ClrflowError
    from clrflow.training.device import group_backend, training_device
    from clrflow.training.job import JobSpec, train_job
    from clrflow.training.loop import Preempted

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        device = training_device()
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(group_backend(device))
        train_job(JobSpec(**storage.read_json(sys.argv[1])), lease=os.environ.get(LEASE, ""))
        dist.barrier()
        return 0
    except Preempted as error:
        tell_end(error.worker_code, error, told_to_stop=error.told_to_stop)
        return error.worker_code
    except ClrflowError as error:
        tell_end(error.exit_code, error)
        return error.exit_code
    except Exception:
        traceback.print_exc()
        return 1


if __name__ == "__main__":
    code = main()
    import torch.distributed as dist

    if code == 0:
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of torchrec's libraries now and then abort an ordinary exit, after all work is done
