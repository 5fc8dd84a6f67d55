"""Prompts: read from files, ordered by a sampler, turned into tokens."""
