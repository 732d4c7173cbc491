"""Bootstrapping training data from heuristic candidate generators: from clean events to request-level examples.

step.py            the step; days.py takes over days that an earlier run built
requests.py        a user's events cut into requests and splits; histories.py what stood before each
view.py            the world as of a point in time
generators/        interest, item and board: conditions and candidates at a point in time; one file each
serve.py           asks the generators; attribution.py says which conditions explain an engagement
dataset.py         lays rows out by bucket; nesting.py makes lists of them and writes; figures.py, quality.py, report.py tell how it went
engine.py          what evaluates all that: duckdb_engine.py or spark_engine.py; expressions.py what they both understand
"""
