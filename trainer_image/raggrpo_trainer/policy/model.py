"""A rank's sharded model: loads a Hugging Face folder, returns token log-probabilities.

Collective: all ranks must build and call it together. Must not know loss or optimiser.
"""

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForCausalLM, PreTrainedModel

from raggrpo_api.spec.model import Attention
from raggrpo_api.spec.training import Precision, RowLayout
from raggrpo_trainer.exchange.policy_config import PolicyConfig

from .attention import SHARED_PREFIX_ATTENTION
from .logprobs import chunked_logprobs
from .packing import MicroBatch


class TokenLogprobs(nn.Module):
    """A causal language model that returns the log-probabilities of a micro-batch's targets.

    It uses the output embedding directly instead of the model's own head: FSDP has it unsharded
    during this forward, and the full logits never have to exist.
    """

    def __init__(self, causal_lm: PreTrainedModel, temperature: float) -> None:
        super().__init__()
        self.causal_lm = causal_lm
        self._temperature = temperature

    def forward(self, batch: MicroBatch) -> Tensor:
        """Return log-probabilities [K] under the sampling temperature."""
        rows = {} if batch.spans is None else {"shared_prefix": batch.spans}
        hidden = self.causal_lm.base_model(
            input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False, **rows
        ).last_hidden_state
        head = self.causal_lm.get_output_embeddings()
        return chunked_logprobs(
            # not hidden[source], whose backward pass sums in nondeterministic order
            hidden.flatten(0, 1).index_select(0, batch.source),
            head.weight,
            batch.targets,
            bias=head.bias,
            temperature=self._temperature,
        )


def build_model(config: PolicyConfig, mesh: DeviceMesh, *, frozen: bool = False) -> TokenLogprobs:
    """Load the folder in fp32 and shard it: one FSDP unit per decoder layer, one for the rest.

    Each rank reads the whole model, 4 bytes of host memory per parameter until it is sharded.
    Dropout is off. A frozen model takes no gradients and is not compiled. Raises ValueError when
    the attention cannot serve the row layout.
    """
    training = config.training
    causal_lm = AutoModelForCausalLM.from_pretrained(
        config.model.path,
        dtype=torch.float32,
        attn_implementation=attention_implementation(config.model.attention, training.row_layout),
    ).eval()
    layers = decoder_layers(causal_lm)
    recomputes = training.gradient_checkpointing and not frozen
    if recomputes:
        causal_lm.gradient_checkpointing_enable({"use_reentrant": False})
    precision = MixedPrecisionPolicy()
    if (dtype := forward_dtype(training.precision)) is not torch.float32:
        precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer in layers:
        # Only the layer's own flag enables checkpointing; its children stay in eval mode.
        layer.training = recomputes
        if training.compile and not frozen:
            layer.compile(dynamic=True)
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    model = TokenLogprobs(causal_lm, config.temperature)
    fully_shard(model, mesh=mesh, mp_policy=precision)  # in place
    return model.requires_grad_(not frozen)


def forward_dtype(precision: Precision) -> torch.dtype:
    """Return the data type of forward passes, here and in the engines."""
    types = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}
    return types.get(precision, torch.float32)


def attention_implementation(attention: Attention, row_layout: RowLayout) -> str:
    """Return transformers' name for the attention that runs; reports show it too."""
    match row_layout, attention:
        case RowLayout.SHARED_PREFIX, Attention.AUTO | Attention.SDPA:
            return SHARED_PREFIX_ATTENTION
        case RowLayout.SHARED_PREFIX, _:
            raise ValueError(
                f"model.attention: {attention} needs training.rowLayout: Padded;"
                " shared-prefix rows bring their own attention"
            )
        case _, Attention.FLASH:
            return "flash_attention_2"
        case _, Attention.EAGER:
            return "eager"
    return "sdpa"


def decoder_layers(causal_lm: PreTrainedModel) -> list[nn.Module]:
    """Return the layers that the model itself declares indivisible."""
    names = set(causal_lm._no_split_modules or ())
    return [module for module in causal_lm.modules() if type(module).__name__ in names]
