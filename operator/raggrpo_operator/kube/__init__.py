"""Kubernetes API: clients, cached objects, the Lease, and evidence in pods and nodes."""
