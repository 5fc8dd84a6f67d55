"""Kubernetes API access: clients, cached objects, the Lease, and evidence read from pods."""
