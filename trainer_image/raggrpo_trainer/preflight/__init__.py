"""Checks that run before a GPU is allocated; they also collect facts for sizing.

One module per subject. Must not import Ray, torch or vLLM, so that preflight starts in seconds;
AutoTokenizer imports torch when a tokenizer needs it. The layout check with a small model runs in a
separate process.
"""
