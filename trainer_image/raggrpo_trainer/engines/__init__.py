"""vLLM engines as Ray actors and the driver's pool of them."""
