"""Checks that run before any GPU is allocated; they also gather facts for sizing.

One module per subject. Must not import Ray, torch or vLLM, so that it starts in seconds;
the experiment with a small model runs in a process of its own.
"""
