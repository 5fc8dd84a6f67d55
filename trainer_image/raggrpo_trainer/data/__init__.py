"""Prompts: read from files, ordered by a sampler, tokenized."""
