"""Generate the quickstart's input: real records, and a tiny model warmed up on them."""
