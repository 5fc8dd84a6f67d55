"""Checkpoints: fencing, folder layout, saving and backups."""
