"""What the driver and the ranks pass to each other. Imports no torch."""
