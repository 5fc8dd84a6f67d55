"""Fake trainer whose driver trains nothing and fails on request.

Modules that are missing here are imported from the real trainer.
"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
