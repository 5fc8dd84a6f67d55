"""The life of a job: what `decide` looks at, in which order, and what follows from it."""
