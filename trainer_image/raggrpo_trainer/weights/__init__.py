"""Weights on their way from the ranks to the engines, and out into a Hugging Face folder."""
