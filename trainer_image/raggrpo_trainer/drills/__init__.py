"""Fault injection for drills and tests. Training must not import this package."""
