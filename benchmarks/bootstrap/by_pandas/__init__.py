"""The bootstrap step in pandas, as a careful person would write it: merge, groupby and index arithmetic, no apply, no loop over rows.

Same rules, same output as clrflow.bootstrap. Candidate lists are made a chunk at a time as there, since all of them at once don't fit memory.

frames.py (verbs that pandas lacks), requests.py (cutting, ordering, histories), interests.py, items.py, boards.py (the generators),
attribution.py, step.py
"""
