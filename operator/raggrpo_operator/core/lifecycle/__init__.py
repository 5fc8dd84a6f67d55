"""The lifecycle of a job: `decide`, and the steps before, during and after an attempt."""
