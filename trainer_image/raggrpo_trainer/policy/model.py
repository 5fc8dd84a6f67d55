"""A rank's sharded model: loads a Hugging Face folder and returns token logprobs.

Collective: all ranks build and call the model together.
"""

import inspect
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from raggrpo_api.model_folder import require_own_weights
from raggrpo_api.spec.lora import LoraSpec
from raggrpo_api.spec.model import Attention
from raggrpo_api.spec.training import Precision, RowLayout
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.exchange.policy_config import PolicyConfig
from raggrpo_trainer.weights.export import reported

from .attention import SHARED_PREFIX_ATTENTION
from .layers import decoder_layers
from .logprobs import LogitTransform, chunked_logprobs
from .lora import UnsupportedLora, adapt
from .packing import MicroBatch


class TokenLogprobs(nn.Module):
    """A causal language model that returns the logprobs of a micro-batch's targets.

    The LM head is computed in chunks from output embedding, scale and soft cap, so that full logits
    never exist; FSDP keeps the embedding unsharded during this forward pass. `layout_check` detects
    an LM head with other operations. The auxiliary loss of a router is not computed.
    """

    def __init__(
        self, causal_lm: PreTrainedModel, temperature: float, *, compiled: bool = False
    ) -> None:
        super().__init__()
        self.causal_lm = causal_lm
        self._compiled = compiled
        self._temperature = temperature
        self._transform = logit_transform(causal_lm.config)

    def forward(self, batch: MicroBatch, *, plain: bool = False) -> Tensor:
        """Return the logprobs of the targets at the sampling temperature: [K].

        With `plain`, uses the model's own forward pass and LM head without gradient, for one row
        only; this materializes the full logits of the targets.
        """
        if plain:
            return self._plain(batch)
        rows = {} if batch.spans is None else {"shared_prefix": batch.spans}
        hidden = self._body()(
            input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False, **rows
        ).last_hidden_state
        lm_head = self.causal_lm.get_output_embeddings()
        return chunked_logprobs(
            # Not hidden[source]: its backward pass sums in nondeterministic order.
            hidden.flatten(0, 1).index_select(0, batch.source),
            lm_head.weight,
            batch.targets,
            bias=getattr(lm_head, "bias", None),
            transform=self._transform,
            temperature=self._temperature,
            compiled=self._compiled,
        )

    @torch.no_grad()
    def _plain(self, batch: MicroBatch) -> Tensor:
        attention = self.causal_lm.config._attn_implementation
        if attention == SHARED_PREFIX_ATTENTION:
            self.causal_lm.set_attn_implementation("sdpa")
        try:
            first = int(batch.source.min()) if len(batch.source) else 0
            can_skip = "logits_to_keep" in inspect.signature(self.causal_lm.forward).parameters
            options = {"logits_to_keep": batch.input_ids.shape[1] - first} if can_skip else {}
            output = self.causal_lm(input_ids=batch.input_ids, use_cache=False, **options)
        finally:
            if attention == SHARED_PREFIX_ATTENTION:
                self.causal_lm.set_attn_implementation(attention)
        logits = output.logits[0, -(batch.input_ids.shape[1] - first) :]
        chosen = logits.index_select(0, batch.source - first).float() / self._temperature
        logprobs: Tensor = chosen.log_softmax(-1).gather(-1, batch.targets[:, None])[:, 0]
        return logprobs

    def _body(self) -> nn.Module:
        """Return the model without its LM head."""
        body: nn.Module = self.causal_lm.base_model
        if body is not self.causal_lm:
            return body
        return self.causal_lm.get_submodule("model")  # Llama 4's base_model is a different module


def build_model(config: PolicyConfig, mesh: DeviceMesh, *, frozen: bool = False) -> TokenLogprobs:
    """Load the model in fp32 and shard it: one FSDP unit per decoder layer, one for the rest.

    Each rank reads the whole model; until it is sharded, a parameter takes 4 bytes of host memory.
    Dropout is off. A frozen model has no gradients, no adapters, and is not compiled. With
    `training.lora`, the initial weights are frozen in the dtype of the forward pass.

    Raises TrainerError PREFLIGHT_FAILED if tensors are missing or not finite in the folder, or if
    the adapters do not fit the model, and ValueError if the attention does not support the row
    layout.
    """
    training = config.training
    attention = attention_implementation(config.model.attention, training.row_layout)
    causal_lm = load_model(config.model.path, attention).eval()
    dtype = forward_dtype(training.precision)
    if training.lora is None or frozen:
        causal_lm.requires_grad_(not frozen)
    else:
        _cast(causal_lm, dtype)
        _adapt(causal_lm, training.lora, training.seed)
    layers = decoder_layers(causal_lm)
    recomputes = training.gradient_checkpointing and not frozen
    compiled = training.compile and not frozen
    if recomputes:
        causal_lm.gradient_checkpointing_enable({"use_reentrant": False})
    precision = MixedPrecisionPolicy()
    if dtype is not torch.float32:
        precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer in layers:
        # The layer's own flag enables gradient checkpointing; its children stay in eval mode.
        layer.training = recomputes
        if compiled:
            layer.compile(dynamic=True)
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    model = TokenLogprobs(causal_lm, config.temperature, compiled=compiled)
    fully_shard(model, mesh=mesh, mp_policy=precision)  # in place
    _sum_gradients(model)
    return model


def _cast(model: nn.Module, dtype: torch.dtype) -> None:
    """Convert the parameters, but not the buffers, as FSDP does before a forward pass."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def _adapt(causal_lm: PreTrainedModel, lora: LoraSpec, seed: int) -> None:
    try:
        adapt(causal_lm, lora, seed=seed)
    except UnsupportedLora as error:
        raise TrainerError(ExitCode.PREFLIGHT_FAILED, str(error)) from error


def _sum_gradients(model: nn.Module) -> None:
    """Let FSDP sum gradients over ranks instead of averaging them.

    To undo an average, the loss would have to be multiplied by the number of ranks, which makes
    FP16 gradients overflow at a lower loss scale.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(enable=True)


def load_model(
    path: str, attention: str | None, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """Return a folder's model.

    Raises TrainerError PREFLIGHT_FAILED if the folder is unsafe or damaged, or if tensors are
    missing or have values that are not finite. Transformers would initialize missing tensors
    randomly, which the self-check could not detect.
    """
    with reported(path):
        require_own_weights(Path(path))
        model, loaded = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype,
            attn_implementation=attention,
            output_loading_info=True,
            trust_remote_code=False,
        )
    causal_lm: PreTrainedModel = model
    if missing := sorted({*loaded["missing_keys"], *map(str, loaded["mismatched_keys"])}):
        raise TrainerError(
            ExitCode.PREFLIGHT_FAILED,
            f"{path} lacks {len(missing)} of the model's tensors, such as {missing[0]}; save the "
            "whole model with save_pretrained(), without a wrapper's prefix in tensor names",
        )
    _reject_non_finite(causal_lm, path)
    return causal_lm


def _reject_non_finite(model: nn.Module, path: str) -> None:
    for name, tensor in model.named_parameters():
        if not tensor.isfinite().all():
            kind = "NaN" if tensor.isnan().any() else "infinity"
            raise TrainerError(
                ExitCode.PREFLIGHT_FAILED,
                f"weights contain {kind}: tensor {name} in {path}; use an intact copy of the model",
            )


def forward_dtype(precision: Precision) -> torch.dtype:
    """Return the dtype of forward passes in the trainer and in the engines."""
    types = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}
    return types.get(precision, torch.float32)


def attention_implementation(attention: Attention, row_layout: RowLayout) -> str | None:
    """Return `attn_implementation` for transformers, or None for the model's default.

    Raises ValueError if the attention does not support the row layout.
    """
    match row_layout, attention:
        case RowLayout.SHARED_PREFIX, Attention.AUTO | Attention.SDPA:
            return SHARED_PREFIX_ATTENTION
        case RowLayout.SHARED_PREFIX, _:
            raise ValueError(
                f"model.attention: {attention} requires training.rowLayout: Padded;"
                " shared-prefix rows use their own attention implementation"
            )
        case _, Attention.FLASH:
            return "flash_attention_2"
        case _, Attention.EAGER:
            return "eager"
        case _, Attention.SDPA:
            return "sdpa"
    return None  # sdpa if the model supports it, else eager


def logit_transform(config: PreTrainedConfig) -> LogitTransform:
    """Return scale and soft cap of the model's LM head from its transformers configuration.

    `logit_scale` and `lm_head_multiplier` multiply (Cohere, Falcon-H1), `logits_scaling` divides
    (Granite), `final_logit_softcapping` caps (Gemma, nanochat).
    """
    text = config.get_text_config()

    def number(name: str) -> float:
        value = getattr(text, name, None)
        return 1.0 if value is None else float(value)

    return LogitTransform(
        scale=number("logit_scale") * number("lm_head_multiplier") / number("logits_scaling"),
        soft_cap=getattr(text, "final_logit_softcapping", None),
    )
