"""Following a running attempt."""
