"""`spec.data`: prompts, their columns and their lengths."""

from typing import Annotated

from pydantic import Field, StringConstraints

from raggrpo_api.fields.base import PLAIN_TEXT, AbsolutePath, ApiModel

Column = Annotated[str, StringConstraints(pattern=PLAIN_TEXT, max_length=128)]
ChatText = Annotated[str, StringConstraints(max_length=32768)]


class Columns(ApiModel):
    """Which columns of the data files hold what; `reward_model.ground_truth` names a nested one."""

    prompt: Column = "prompt"
    """The question: a text, or a list of {role, content} that ends with the user's message."""
    answer: Column = "answer"
    """Reference answer: a text, a list of accepted texts, or a list of messages."""
    context: Column = "context"
    """Dialogue context; required by RagChat endpoints."""
    query: Column = ""
    """Retrieval query; empty: the user's last message is the query."""
    tools: Column = ""
    """A row's functions for the chat template, a list or JSON text; empty: data.tools."""


class DataSpec(ApiModel):
    """The data set and the batch shape."""

    train_files: Annotated[list[AbsolutePath], Field(min_length=1, max_length=64)]
    """Parquet or JSONL files with one prompt a row."""
    validation_files: Annotated[list[AbsolutePath], Field(max_length=64)] = []
    """Held-out files; used when validation is switched on."""
    train_batch_size: Annotated[int, Field(ge=1, le=65536)] = 128
    """Prompts per step; each is answered rollout.n times."""
    max_prompt_length: Annotated[int, Field(ge=8, le=1_000_000)] = 1024
    """Tokens of the whole prompt, retrieved passages included."""
    max_response_length: Annotated[int, Field(ge=1, le=1_000_000)] = 512
    """Tokens of one completion, inserted search results included."""
    num_workers: Annotated[int, Field(ge=1, le=64)] = 16
    """Threads that fill templates and tokenise prompts; no more than the driver has CPUs."""
    prefetch_factor: Annotated[int, Field(ge=1, le=16)] = 2
    """Batches prepared ahead of the step that needs them."""
    stage_to_local_disk: bool = False
    """Copy the data files to the pod's fast disk before training."""
    max_samples: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0
    """Use only the first rows of the data set; 0: all."""
    allow_truncation: bool = False
    """Drop passages, then cut the question, when a prompt is too long, instead of refusing."""
    columns: Columns = Columns()
    """Names of the columns."""
    system_prompt: ChatText = ""
    """First message of every conversation, in place of a row's own; empty: the row's own."""
    chat_template: ChatText = ""
    """Jinja template instead of the tokenizer's own; empty: the tokenizer's, if it has one."""
    tools: ChatText = ""
    """JSON list of functions that the chat template tells the policy of; empty: none."""

    @property
    def max_sequence_length(self) -> int:
        """Tokens of the longest prompt and completion together."""
        return self.max_prompt_length + self.max_response_length
