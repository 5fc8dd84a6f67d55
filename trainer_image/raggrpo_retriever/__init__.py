"""The bundled retriever: an HTTP server for one corpus. Must not know about jobs."""
