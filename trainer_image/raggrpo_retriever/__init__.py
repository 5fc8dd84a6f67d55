"""The managed retriever: an HTTP server for one corpus. Must not depend on jobs."""

import os

# If JAX is installed, bm25s runs it on import, and JAX reserves three quarters of a GPU's memory.
os.environ["JAX_PLATFORMS"] = "cpu"
