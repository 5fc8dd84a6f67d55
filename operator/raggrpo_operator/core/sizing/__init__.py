"""How much memory, CPU and /dev/shm each of a job's pods needs, as named terms."""
