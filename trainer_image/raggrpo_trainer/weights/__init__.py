"""Moves weights from the ranks to the engines, and exports them to a Hugging Face folder."""
