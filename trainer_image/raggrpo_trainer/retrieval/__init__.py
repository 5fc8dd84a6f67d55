"""Retrieval endpoints: protocols, the client, and the stand-alone test of them."""
