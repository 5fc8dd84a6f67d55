"""Reports of an attempt: progress, history, metrics, experiment trackers.

`metrics` lists all metrics.
"""
