"""Each benchmark prints a table, compares side by side in one run, and writes JSON; README's figures come from there.

python -m benchmarks.quality --size small --json quality.json
"""
