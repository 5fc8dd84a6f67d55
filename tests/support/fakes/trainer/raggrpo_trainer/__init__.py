"""Fake trainer for tests that need a driver that fails as ordered; it trains nothing.

Missing modules are those of the real trainer.
"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
