"""Rollouts: a batch of prompts in, scored groups of completions out."""
