"""Calls to HTTP services: retries, limits and outages. Must not depend on training."""
