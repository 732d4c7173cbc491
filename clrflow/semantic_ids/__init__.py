"""Semantic ids: a short tuple of codes an item, unique, stable and never collapsed.

step.py            the step and its gate
rqvae.py, quantiser.py, kmeans.py, training.py    encoder, balanced residual quantiser, decoder and how they are fitted
assign.py          unique codes for all items
tokenizer.py       what is saved, hashed and shipped
quality.py, report.py    the figures and the page
"""
