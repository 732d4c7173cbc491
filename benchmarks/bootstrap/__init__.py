"""Bootstrapping measured: against pandas, Polars and hand-written SQL, over a hundredfold of events, and how good the heuristics are.

    python -m benchmarks.bootstrap [--size full] [--json FILE]

__main__.py      the rows and claims
jobs.py          what runs in processes of its own
worlds.py        the data sets; movielens_boards.py: one that lies beside the project
by_pandas/, by_polars/   the same step in other tools, row for row; nested.py, medoids.py: what they share
co_engagement.py, counting.py, heuristics.py   the graph in SQL; what was lost and what pairs weigh; recall and attribution
"""
