"""Faults struck on purpose, for drills and tests. Training imports nothing of this."""
