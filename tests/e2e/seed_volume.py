"""Runs in a pod with the trainer's image: writes a tiny model, prompts and passages to a volume."""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

END = "<|end|>"


def main() -> None:
    """Fill the folder."""
    folder = Path(sys.argv[1])
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END, pad_token=END)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    numbers = range(64)
    prompts = [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in numbers]
    write_rows(folder / "train.jsonl", prompts)
    # A file as it comes from elsewhere: its prompts are in a column that no job expects.
    write_rows(folder / "questions.jsonl", [{"question": "1 + 1 =", "answer": "2"}])
    passages = [{"id": str(n), "contents": f"{n} + 1 = {n + 1}"} for n in numbers]
    write_rows(folder / "corpus.jsonl", passages)


def write_rows(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
