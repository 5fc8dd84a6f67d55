"""What an attempt reports: progress, history, metrics, experiment trackers."""
