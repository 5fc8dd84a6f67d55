"""Retrieval endpoints: client, protocols, response mapping, and a stand-alone load test.

`response_mapping` reads passages from a response of any shape, by the endpoint's `response` field.
"""
