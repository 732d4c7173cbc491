"""The data contract: a user's tables in, checked and sorted tables out.

schema.py          the tables and their types; intake.py what files must keep; rules.py, apply_rules.py what rows must keep
profile.py, drift.py    what the data are like, and whether that is what they were like before
ordering.py, clean.py   the order of events, and the clean tables
validate.py        the step; report.py its page
tables.py          reading and writing tables, for every step
movielens.py, synthetic.py, text_encoder.py, sources.py    real and made-up tables to start with
"""
