"""What a local run shows its user: live display, report, charts, summary."""
