"""How Kubeflow Pipelines sees the steps: one folder a step, each a thin component over `clrflow.steps.execute`.

A component passes places and numbers; the work is in `clrflow/`. Its README's table of parameters comes from its docstring
(readmes.py). Next: configure/component.py, where a run begins, then pipelines/conditional_retrieval.py, which joins them.
"""

PIPELINE_IMAGE = "clrflow/pipeline:0.1.0-data"
"""The image in which most steps' pods run, without torch; its name is replaced when the pipeline is compiled for a registry (--image)."""
TORCH_IMAGE = "clrflow/pipeline:0.1.0-torch-cpu"
"""The image of the steps that need torch: semantic_ids, and train, which trains in its own pod unless a launcher starts a job for it."""
