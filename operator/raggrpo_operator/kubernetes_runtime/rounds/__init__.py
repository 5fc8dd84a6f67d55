"""One round of one job: observe, perform, write the status, post Events."""
