"""Faults injected on purpose, for drills and tests. Training never imports this."""
