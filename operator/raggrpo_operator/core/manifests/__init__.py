"""The objects that the operator creates in a cluster: dict literals. Must not use a client."""
