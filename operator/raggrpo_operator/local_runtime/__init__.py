"""Runs a job on this machine: Ray as child processes, state as files."""
