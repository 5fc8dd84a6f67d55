"""Checkpoints: fencing, folder layout, saving, retention and backups."""
