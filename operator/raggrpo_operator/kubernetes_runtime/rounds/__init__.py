"""One round of one job: observe, decide, write the status, post Events, perform the actions."""
