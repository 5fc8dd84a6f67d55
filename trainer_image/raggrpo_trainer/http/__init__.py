"""Calls to HTTP services: retries, limits and outages; the log of HTTP servers.

Must not depend on training.
"""
