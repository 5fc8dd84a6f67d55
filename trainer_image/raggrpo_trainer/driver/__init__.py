"""The driver of an attempt: builds the parts, runs the training loop."""
