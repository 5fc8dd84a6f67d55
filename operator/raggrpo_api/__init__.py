"""Interface between job file, operator and trainer: pydantic models and constants.

Part of both images. Must not import kopf or torch; does no I/O.
"""
