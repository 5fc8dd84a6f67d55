"""Prepare the quickstart's input on the spot: real records, and a tiny model warmed up on them."""
