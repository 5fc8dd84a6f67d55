"""The contract between the job file, the operator and the trainer: pydantic models and constants.

Both images ship this package. It imports neither kopf nor torch and does no I/O.
"""
