"""Conditional Learned Retrieval on Kubeflow: what runs inside the images.

An event's way into the index: data → bootstrap → semantic_ids → training → evaluation → index. Each folder holds one step;
`steps.py` is how a step is run, found again and resumed. Nothing here knows KFP, and only `launch` knows where it runs.
"""

__version__ = "0.1.0"
