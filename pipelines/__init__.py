"""The DAG and the command line: conditional_retrieval.py is the pipeline, cli.py the entry of `clrflow`."""
