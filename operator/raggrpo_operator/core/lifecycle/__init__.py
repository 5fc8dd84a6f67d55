"""The lifecycle of a job: `decide` and its round, by the moments of an attempt."""
