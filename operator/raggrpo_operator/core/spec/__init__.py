"""Turns what the user wrote into a complete specification: parse, presets, resolve."""
