"""Retrieval endpoints: their protocols, a client, and a stand-alone load test."""
