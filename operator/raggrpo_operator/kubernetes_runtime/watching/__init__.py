"""Cached objects, evidence about pods and the newest version of each job, from watches."""
