"""Recognition of secrets by name and by value, and their redaction in shown text."""
