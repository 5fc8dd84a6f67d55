"""A tiny untrained model whose tokens are whole words, as a Hugging Face folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

END = "<eos>"


def write_word_model(
    folder: Path,
    words: Sequence[str],
    *,
    context: int = 128,
    tied: bool = False,
    experts: int = 0,
    special: Sequence[str] = (),
) -> Path:
    """Write model and tokenizer; return the folder. Unknown words become `?`.

    `special` are the words that are special tokens.

    A tied, untrained model repeats its last token. With experts it is a Qwen3-MoE that uses two
    experts per token, else a Qwen2.
    """
    # Imported here because most importers of this module only start processes.
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        AutoModelForCausalLM,
        PreTrainedTokenizerFast,
        Qwen2Config,
        Qwen3MoeConfig,
    )

    vocabulary = [END, "?", *words]
    table = Tokenizer(models.WordLevel({w: i for i, w in enumerate(vocabulary)}, unk_token="?"))
    table.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    table.add_special_tokens(list(special))
    torch.manual_seed(0)
    size: dict[str, Any] = {
        "vocab_size": len(vocabulary),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": context,
        "tie_word_embeddings": tied,
        "bos_token_id": None,
        "eos_token_id": 0,
    }
    mixture = {"head_dim": 32, "num_experts": experts, "num_experts_per_tok": 2}
    mixture["moe_intermediate_size"] = 64
    config = Qwen3MoeConfig(**size, **mixture) if experts else Qwen2Config(**size)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=table, eos_token=END).save_pretrained(folder)
    return folder
