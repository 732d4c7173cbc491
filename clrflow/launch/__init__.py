"""Where a training job runs: torchrun on this machine, or a job on a cluster. Nothing else in the package knows."""
