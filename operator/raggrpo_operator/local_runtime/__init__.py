"""Runs a job on this machine, with Ray in child processes and the state in files."""
