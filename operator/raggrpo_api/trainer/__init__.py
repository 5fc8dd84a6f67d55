"""What the operator and the trainer exchange: configuration, progress, results and exit codes."""
