"""`spec.data`: data files, columns, sequence lengths and batch size."""

from typing import Annotated

from pydantic import Field, StringConstraints

from raggrpo_api.fields.base import PLAIN_TEXT, AbsolutePath, ApiModel
from raggrpo_api.fields.change_class import MODEL, OPERATIONAL, OPTIMIZATION
from raggrpo_api.fields.reach import Server
from raggrpo_api.fields.source import SourceUrl

Column = Annotated[str, StringConstraints(pattern=PLAIN_TEXT, max_length=128)]
DataSource = Annotated[SourceUrl, Server()]
ChatText = Annotated[str, StringConstraints(max_length=32768)]


class Columns(ApiModel):
    """Column names of the data files; `reward_model.ground_truth` is a nested column."""

    prompt: Column = "prompt"
    """Prompt: a text, or messages {role, content} or {from, value} that end with a user message."""
    answer: Column = "answer"
    """Reference answer: a text, a list of accepted texts, or a list of messages."""
    context: Column = "context"
    """Dialogue context; required by RagChat endpoints."""
    query: Column = ""
    """Retrieval query; empty: the last user message."""
    tools: Column = ""
    """Tools for the chat template, as a list or JSON text; empty: data.tools."""


class DataSpec(ApiModel):
    """Data set, sequence lengths and batch size."""

    train_files: Annotated[list[AbsolutePath], Field(max_length=64), OPERATIONAL] = []
    """Parquet files, or JSON files with one object per line; one prompt per row. A folder is
    replaced by its files. They may move, but checkpoints depend on their content."""
    sources: Annotated[list[DataSource], Field(max_length=4), OPERATIONAL] = []
    """URLs to download training data from, such as `hf://datasets/org/name#split=train`, instead of
    trainFiles."""
    validation_files: Annotated[list[AbsolutePath], Field(max_length=64), OPERATIONAL] = []
    """Held-out files for validation."""
    validation_sources: Annotated[list[DataSource], Field(max_length=3), OPERATIONAL] = []
    """URLs to download held-out data from, instead of validationFiles."""
    train_batch_size: Annotated[int, Field(ge=1, le=65536), OPTIMIZATION] = 128
    """Prompts per step, each with rollout.n completions."""
    max_prompt_length: Annotated[int, Field(ge=8, le=1_000_000), OPTIMIZATION] = 1024
    """Maximum tokens per prompt, including retrieved passages."""
    max_response_length: Annotated[int, Field(ge=1, le=1_000_000), OPTIMIZATION] = 512
    """Maximum tokens per completion, including search results."""
    num_workers: Annotated[int, Field(ge=1, le=64), OPERATIONAL] = 16
    """Threads that render and tokenize prompts; at most the driver's CPUs."""
    prefetch_factor: Annotated[int, Field(ge=1, le=16), OPERATIONAL] = 2
    """Number of batches to prepare in advance."""
    stage_to_local_disk: Annotated[bool, OPERATIONAL] = False
    """Copy the data files to the pod's local disk before training."""
    max_samples: Annotated[int, Field(ge=0, le=1_000_000_000), MODEL] = 0
    """Number of rows to use, from the start of the data set; 0: all."""
    allow_truncation: Annotated[bool, OPTIMIZATION] = False
    """Shorten prompts that are too long (passages first, then the question) instead of failing."""
    columns: Annotated[Columns, MODEL] = Columns()
    """Column names."""
    system_prompt: Annotated[ChatText, MODEL] = ""
    """System message of every conversation; empty: the one in the row, if any."""
    chat_template: Annotated[ChatText, MODEL] = ""
    """Jinja chat template; empty: the tokenizer's, if it has one."""
    tools: Annotated[ChatText, MODEL] = ""
    """JSON list of tools for the chat template; empty: none."""

    @property
    def max_sequence_length(self) -> int:
        """Maximum tokens of a prompt and its completion together."""
        return self.max_prompt_length + self.max_response_length
