"""What the process is made of apart from its rounds: queue, metrics, probes, settings."""
