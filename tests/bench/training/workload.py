"""The input of the benchmarks: a random model, its word tokenizer, prompts of a fixed length.

All data is generated from seeds. Independent of the systems that are compared.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHARED_EMBEDDING = 20.0
"""First component of all embeddings, in standard deviations of the others."""
EOS_LOGIT = -30.0
"""Approximate logit of the end token: never sampled, so that lengths are fixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Workload of all systems: a step has `prompts` × `n` completions and one update."""

    layers: int = 8
    hidden: int = 512
    intermediate: int = 736
    heads: int = 8
    kv_heads: int = 0
    """Key/value heads; 0: as many as `heads`."""
    vocabulary: int = 8064
    prompt_tokens: int = 384
    response_tokens: int = 64
    prompts: int = 4
    n: int = 8
    learning_rate: float = 1e-6
    precision: str = "FP32"
    """FP32, BF16 or FP16; the master weights stay in FP32."""
    warmup: int = 2
    """Uncounted first steps."""
    steps: int = 5
    """Counted steps."""
    device: str = "CPU"
    """CPU or GPU (one card)."""

    @property
    def dtype(self) -> str:
        """Name of the torch dtype of the computation."""
        return {"FP32": "float32", "BF16": "bfloat16", "FP16": "float16"}[self.precision]

    @property
    def samples(self) -> int:
        return self.prompts * self.n

    @property
    def total_steps(self) -> int:
        return self.warmup + self.steps


TINY: dict[str, Any] = {
    "layers": 2,
    "hidden": 64,
    "intermediate": 128,
    "heads": 2,
    "vocabulary": 512,
    "prompt_tokens": 32,
    "response_tokens": 8,
}
"""A model dominated by overhead, for smoke runs."""

SIZES: dict[str, dict[str, Any]] = {
    "tiny": TINY,
    "0.5B": {
        "layers": 24,
        "hidden": 896,
        "intermediate": 4864,
        "heads": 14,
        "kv_heads": 2,
        "vocabulary": 151_936,
    },
    "1.5B": {
        "layers": 28,
        "hidden": 1536,
        "intermediate": 8960,
        "heads": 12,
        "kv_heads": 2,
        "vocabulary": 151_936,
    },
}
"""Shapes of Qwen2.5 models; the separate head makes them 0.63B and 1.78B parameters."""


def write_model(work: Workload, folder: Path) -> int:
    """Write model and tokenizer in Hugging Face's format; return the number of parameters."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    words = ["<eos>", "<pad>", "?", *(f"w{i}" for i in range(work.vocabulary - 3))]
    table = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="?"))
    table.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=table, eos_token="<eos>", pad_token="<pad>", unk_token="?"
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=work.vocabulary,
        hidden_size=work.hidden,
        intermediate_size=work.intermediate,
        num_hidden_layers=work.layers,
        num_attention_heads=work.heads,
        num_key_value_heads=work.kv_heads or work.heads,
        max_position_embeddings=work.prompt_tokens + work.response_tokens,
        tie_word_embeddings=False,  # a tied, untrained model repeats its last token
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
    )
    with torch.device("cuda" if work.device == "GPU" else "cpu"):
        model = Qwen2ForCausalLM(config)
        _suppress_end_token(model)
    model.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def write_prompts(work: Workload, file: Path) -> None:
    """Write unique prompts of exactly `prompt_tokens` tokens, one per line."""
    draw = random.Random(0)
    texts = [
        " ".join(f"w{draw.randrange(work.vocabulary - 3)}" for _ in range(work.prompt_tokens))
        for _ in range(work.total_steps * work.prompts)
    ]
    file.write_text("".join(json.dumps({"prompt": t, "answer": "w0"}) + "\n" for t in texts))


def score(completion: str) -> float:
    """Return the share of words with an even number, which varies within groups."""
    words = completion.split()
    return sum(word[-1] in "02468" for word in words) / max(1, len(words))


def _suppress_end_token(model: Any) -> None:
    """Give hidden states a common direction that the end token's logit opposes."""
    import torch

    with torch.no_grad():
        embeddings, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        embeddings[:, 0] = SHARED_EMBEDDING * model.config.initializer_range
        some = torch.arange(3, model.config.vocab_size)[None, :64]
        shared = model.model(some).last_hidden_state.mean((0, 1))
        head[0] = EOS_LOGIT * shared / shared.square().sum()
