"""How much memory, CPU and /dev/shm each pod of a job needs, as named terms."""
