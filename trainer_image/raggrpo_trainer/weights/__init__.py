"""Weight transfer from the trainer ranks to the vLLM engines, and export to a Hugging Face folder.

The driver runs this after every training step:

    transfer = await ranks.send_weights(step, backend)  # a WeightTransfer
    await pool.load_weights(transfer)                    # transfer.load_into(receivers)
    pool.submit(requests)                                # sampled from the policy of `step`

`load_weights` returns once every engine has loaded the version, so a step never samples from an
older version. With `offPolicySteps: 1` generation continues meanwhile: tokens sampled before the
update keep the logprobs of the policy that sampled them.

There are three backends behind this interface. IPC and NCCL are vLLM's own backends
(`vllm.distributed.weight_transfer`); SharedMemory replaces them on CPUs:

    SharedMemory  CPU                 rank 0 writes a file in /dev/shm, engines read it at any time
    IPC           GPU, colocated      engines map a buffer on the GPU that they share with a rank
    NCCL          GPU, disaggregated  rank 0 broadcasts to the engines' workers

IPC and NCCL transfer tensor chunks; ranks and engines alternate (`transfer.ChunkTransfer`):

    rank 0..n-1  next_chunk   gather the next tensors (collective)        rank_side
    engines      load_chunk   map the buffer, or receive the broadcast    receiver

A replacement engine always loads a file before it serves requests.

    backend        selection of the backend
    transfer       the driver's side: WeightTransfer, one class per kind of transfer
    chunk_sources  the driver's calls of the ranks for IPC and NCCL
    rank_side      a rank's side of IPC and NCCL
    shared_memory  both sides of SharedMemory
    receiver       an engine's side, in the process of its actor
    vllm_extension an engine's side, in vLLM's worker process
    export         full tensors of a sharded model
"""
