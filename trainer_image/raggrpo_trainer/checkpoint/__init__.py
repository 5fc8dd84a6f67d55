"""Checkpoints: the fence, the folder, saving, backups."""
