"""The FSDP2 ranks as Ray actors, and the driver's handle to them."""
