"""Stands in for the trainer where a test needs a driver that fails on order; it trains nothing.

What it lacks is the real trainer's.
"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
