"""Full-corpus ranking on held-out requests, beside baselines and the heuristics, and the gate before publishing.

step.py            the evaluate step; gate.py the gate step, comparison.py how two models are compared
heldout.py         what is ranked, what is masked; ranking.py and metrics.py how; intervals.py how sure that is
baselines.py, scorers.py, generators.py    what stands beside the model; conditions.py, slices.py where it is looked at more closely
"""
