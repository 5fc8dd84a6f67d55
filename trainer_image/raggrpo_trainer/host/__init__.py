"""The machine under the processes: memory, devices, placement, signals."""
