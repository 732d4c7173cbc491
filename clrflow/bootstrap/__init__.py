"""Bootstrapping training data from heuristic candidate generators: from clean events to request-level examples.

step.py            the step
requests.py        a user's events cut into requests and splits; histories.py what stood before each
generators/        interest, item and board: conditions and candidates at a point in time; one file each
serve.py           asks the generators; attribution.py says which conditions explain an engagement
dataset.py         assembles and writes; statistics.py, quality.py, report.py tell how it went
engine.py, view.py Ibis on DuckDB, and the world as of a point in time
"""
