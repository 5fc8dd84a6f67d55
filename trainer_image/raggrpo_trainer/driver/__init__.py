"""The driver of an attempt: starts ranks and engines, resumes, runs the training loop."""
