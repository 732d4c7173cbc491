"""The data contract: a user's tables in, checked and sorted tables out.

schema.py          the tables and their types; rules.py what rows must keep; intake.py what files must keep
validate.py        the step
tables.py          reading and writing tables, for every step
movielens.py, synthetic.py, text_encoder.py, sources.py    real and made-up tables to start with
"""
