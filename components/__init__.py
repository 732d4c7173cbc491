"""How Kubeflow Pipelines sees the steps: one folder a step, each a thin component over `clrflow.steps.execute`.

A component passes places and numbers; the work is in `clrflow/`. Its README's table of parameters comes from its docstring
(readmes.py). Next: configure/component.py, where a run begins, then pipelines/conditional_retrieval.py, which joins them.
"""

PIPELINE_IMAGE = "clrflow/pipeline:0.1.0-python3.11"
"""The image in which every step's pod runs; a registry's prefix is put before it when the pipeline is compiled for a cluster."""
