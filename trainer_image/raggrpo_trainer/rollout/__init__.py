"""Rollouts: from a batch of prompts to scored groups of completions."""
