"""The GRPO trainer: one driver, FSDP2 ranks and vLLM engines as Ray actors."""
