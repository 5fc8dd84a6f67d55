"""One rank's model and optimizer: packing, logprobs, loss, step."""
