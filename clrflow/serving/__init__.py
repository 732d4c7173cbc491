"""Answers from a published index: one user, many conditions, one history pass.

tables.py   the quantised rows that train wrote, as a lookup
query.py    Retriever: user and conditions in, ranked items out
"""
