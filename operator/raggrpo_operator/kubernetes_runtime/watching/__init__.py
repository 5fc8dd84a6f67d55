"""Watches and what they provide: cached objects, pod evidence and the newest jobs."""
