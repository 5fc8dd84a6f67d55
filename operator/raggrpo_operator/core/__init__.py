"""Values in, values out: no clock, no environment, no client."""
