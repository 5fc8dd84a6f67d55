"""What a job needs before an attempt runs: preflight, retrievers, a Ray cluster."""
