"""A tiny untrained BERT whose tokens are whole words, as a Hugging Face folder."""

from collections.abc import Sequence
from pathlib import Path

START, END, PAD, UNKNOWN = "[CLS]", "[SEP]", "[PAD]", "[UNK]"


def write_embedding_model(
    folder: Path, words: Sequence[str], *, context: int = 64, hidden: int = 16, layers: int = 2
) -> Path:
    """Write model and tokenizer; return the folder. Texts are encoded as `[CLS] words [SEP]`."""
    # Imported here because most importers of this module only start processes.
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    vocabulary = [PAD, UNKNOWN, START, END, *words]
    table = Tokenizer(models.WordLevel({w: i for i, w in enumerate(vocabulary)}, UNKNOWN))
    table.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    table.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}", special_tokens=[(START, 2), (END, 3)]
    )
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=max(2, hidden // 64),
        max_position_embeddings=context,
        initializer_range=0.5,  # embeddings of different texts differ clearly
    )
    BertModel(config).save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=table,
        pad_token=PAD,
        unk_token=UNKNOWN,
        cls_token=START,
        sep_token=END,
        model_max_length=context,
    ).save_pretrained(folder)
    return folder
