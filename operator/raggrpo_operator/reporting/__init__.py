"""Output of a local run: live display, report with charts, summary."""
