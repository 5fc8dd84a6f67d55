"""Stands in for the trainer where a test needs a driver that fails on order; it trains nothing."""
