"""Pure functions over a job's status: conditions, observed time, time accounting."""
