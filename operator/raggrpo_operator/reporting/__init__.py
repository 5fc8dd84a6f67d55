"""What a person sees of a local run: live display, report, charts, summary."""
