"""What makes a job unfit to run: RULES is the table of contents, one module per subject."""
