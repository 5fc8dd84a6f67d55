"""One round of a job: observe, decide, write the status, post Events, perform the actions."""
