"""Follow a running attempt: progress, deadlines and trends."""
