"""Prepare an attempt: preflight, managed retrievers, queue admission and the Ray cluster."""
