"""The machines of an attempt: memory, devices, placement, signals, logs."""
