"""One rank's model and optimiser: packing, log-probabilities, loss, step."""
