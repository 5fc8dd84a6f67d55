"""`status` of a job: conditions, causes, attempts, sizing and restart state."""
