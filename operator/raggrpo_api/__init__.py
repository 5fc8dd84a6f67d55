"""Interface between job file, operator and trainer: pydantic models and constants.

Part of the operator image and the trainer image. Must not import kopf or torch; does no I/O.
"""
