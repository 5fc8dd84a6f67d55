"""The machines that processes run on: memory, devices, placement, signals."""
