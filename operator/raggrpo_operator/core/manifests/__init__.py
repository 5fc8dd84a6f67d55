"""Manifests of the objects that the operator creates, as dict literals. Must not use a client."""
