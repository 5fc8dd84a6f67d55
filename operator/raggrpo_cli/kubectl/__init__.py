"""`kubectl raggrpo`: the verbs of a job in a cluster, with the caller's own rights."""
