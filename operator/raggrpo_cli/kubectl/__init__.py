"""`kubectl raggrpo`: inspect jobs in a cluster with the permissions of the caller."""
