"""The `raggrpo` command, also installed as `kubectl-raggrpo`."""
