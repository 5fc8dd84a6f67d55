"""Handle the end of an attempt: classify its cause, then complete, restart or fail the job."""
