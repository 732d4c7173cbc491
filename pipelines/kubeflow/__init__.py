"""Kubeflow Pipelines as a client sees it: what steps' pods are given (pods.py), upload, submission, following a run, schedules.

client.py is the only place that talks to the API; submit.py and schedule.py say what is done in which order.
"""
