"""`kubectl raggrpo`: inspect jobs in a cluster. Uses only the caller's own rights."""
