"""Parse a job file and resolve its spec: violations, presets, derived values."""
