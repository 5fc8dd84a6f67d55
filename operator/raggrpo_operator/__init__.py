"""The operator: a pure core and two runtimes that observe and perform for it."""
