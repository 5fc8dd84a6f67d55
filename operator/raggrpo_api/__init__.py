"""The contract between the job file, the operator and the trainer: pydantic models and constants.

Both images carry this package. It imports neither kopf nor torch and performs no I/O.
"""
