"""The managed retriever: an HTTP server for one corpus. Must not depend on jobs."""
