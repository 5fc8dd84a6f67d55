"""The operator: a pure core and two runtimes with its side effects."""
