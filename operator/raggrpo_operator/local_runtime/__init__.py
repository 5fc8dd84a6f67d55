"""Runs the same decisions with Ray processes on this machine; keeps state in files."""
