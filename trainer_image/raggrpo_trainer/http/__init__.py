"""HTTP calls with retries and limits, for services that know nothing of training."""
