"""Pure functions over a job's status: conditions, deadline clocks, time accounting."""
