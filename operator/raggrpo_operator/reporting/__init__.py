"""Output of a local run: the live display, the report with charts, and the summary."""
