"""The operator: a pure core, and two runtimes that perform its actions."""
