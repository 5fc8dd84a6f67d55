"""What follows the end of an attempt: its cause, a restart or failure."""
