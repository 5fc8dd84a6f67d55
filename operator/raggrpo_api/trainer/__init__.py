"""Data that operator and trainer exchange: configuration, progress, results and exit codes."""
