"""Downloads of models and data, and uploads of results. Must not depend on training."""
