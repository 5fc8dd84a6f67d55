"""The managed retriever: an HTTP server for one corpus. Must not know about jobs."""
