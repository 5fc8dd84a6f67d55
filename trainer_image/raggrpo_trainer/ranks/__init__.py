"""The FSDP2 ranks as Ray actors, and the driver's handle to them.

Ranks outlive a killed driver: `surviving_ranks` lets the next driver reuse them.
"""
