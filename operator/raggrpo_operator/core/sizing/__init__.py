"""CPU, memory and /dev/shm of each pod of a job, as named terms."""
