"""The exported index: built, measured against exact search, published so that a reader sees the old or the new.

export.py, build.py    the export_index step and the FAISS index in it
bundle.py              what is exported, as its readers see it
publish.py, published.py    the publish step, versions and the pointer
"""
