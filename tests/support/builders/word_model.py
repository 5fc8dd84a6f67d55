"""A tiny untrained model whose tokens are whole words, as a Hugging Face folder."""

from collections.abc import Sequence
from pathlib import Path

END = "<eos>"


def write_word_model(
    folder: Path, words: Sequence[str], *, context: int = 128, tied: bool = False
) -> Path:
    """Write model and tokenizer; any other word reads as `?`. Returns the folder.

    A tied, untrained model only repeats its last token.
    """
    # Imported late: most who import this module only start processes.
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    vocabulary = [END, "?", *words]
    table = Tokenizer(models.WordLevel({w: i for i, w in enumerate(vocabulary)}, unk_token="?"))
    table.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=context,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=0,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=table, eos_token=END).save_pretrained(folder)
    return folder
