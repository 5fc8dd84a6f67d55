"""Memory arithmetic shared by the operator and the trainer."""
