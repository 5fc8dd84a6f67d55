"""The launch check-list (A12), run before any GPU is taken: named checks, and facts for sizing.

One module per subject. Imports neither Ray, torch nor vLLM, so that it starts in seconds.
"""
