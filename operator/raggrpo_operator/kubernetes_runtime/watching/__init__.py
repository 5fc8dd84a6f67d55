"""Watches and the state built from them: cached objects, pod evidence and the newest jobs."""
