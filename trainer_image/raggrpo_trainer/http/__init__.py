"""Calls to HTTP services: retries, limits and outages. Must not know about training."""
