"""Rules that only the API server evaluates."""
