"""What the operator creates in a cluster: one module per kind, dict literals, no client."""
