"""Rewards: built-in functions, Python hooks and HTTP judges."""
