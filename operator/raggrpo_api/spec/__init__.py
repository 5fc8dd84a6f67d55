"""The blocks of a job's spec, one module per block."""
