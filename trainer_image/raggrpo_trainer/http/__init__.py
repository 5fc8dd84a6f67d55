"""HTTP calls with retries and limits; nothing here knows about training."""
