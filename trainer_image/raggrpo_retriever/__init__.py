"""The bundled retriever: an HTTP server over one corpus, without knowledge of jobs."""
