"""Size limits of specs and of data passed between processes, in bytes of UTF-8."""

from typing import Final

MAX_SPEC_BYTES: Final = 64 * 1024
"""Total size of all strings in a spec."""
MAX_ENV_BYTES: Final = 32 * 1024
"""`spec.env`: names, values and references."""
MAX_CONFIG_BYTES: Final = 64 * 1024
"""`TrainerConfig` as JSON."""
MAX_PROGRESS_BYTES: Final = 64 * 1024
"""Response to GET /progress."""
MAX_PREFLIGHT_BYTES: Final = 4096
"""`PreflightResult` as JSON; equals the kubelet's limit for a termination message."""
MAX_STATUS_TEXT: Final = 2 << 20
"""Total characters of all strings in a status; more than the API server stores."""

# Files that others wrote
MAX_TEXT_FILE_BYTES: Final = 1 << 19
"""Job file or script; configuration with the files that it includes."""
MAX_MODEL_JSON_BYTES: Final = 16 << 20
"""config.json, generation_config.json, tokenizer_config.json."""
MAX_INDEX_BYTES: Final = 32 << 20
"""model.safetensors.index.json, which has one entry per tensor."""
MAX_TOKENIZER_BYTES: Final = 64 << 20
"""Any other file of a tokenizer; the largest known ones have 40 MB."""
MAX_FOLDER_TEXT_BYTES: Final = 256 << 20
"""All text files of a model folder; links count as often as they occur."""
MAX_TEMPLATES: Final = 100
"""Chat templates of a model folder."""
MAX_TEMPLATES_BYTES: Final = 4 << 20
"""All chat templates of a model folder."""
MAX_SAFETENSORS_HEADER_BYTES: Final = 32 << 20
"""Header of a safetensors file; a shard with 100,000 tensors has 20 MB."""
MAX_SAFETENSORS_HEADERS_BYTES: Final = 48 << 20
"""Headers of all safetensors files of a model; reading them takes 0.4 s of CPU time per MB."""
MAX_JSON_MEMORY: Final = 384 << 20
"""Estimated memory of the values in a JSON text."""
MAX_JSON_DEPTH: Final = 100
"""Nesting of a JSON value; functions that call themselves for each level must not fail."""
MAX_TEXT_LINES: Final = 2_000_000
"""Lines of a vocabulary or a list of merges."""
MAX_ROW_BYTES: Final = 16 << 20
"""Row of a data file or corpus, as JSON or in memory."""
MAX_PARQUET_FOOTER_BYTES: Final = 64 << 20
"""Footer of a Parquet file; a column chunk with short texts has 2 KB of statistics."""
MAX_PARQUET_COLUMNS: Final = 10_000
"""Columns of a Parquet file, nested ones included."""
MAX_ROW_GROUP_BYTES: Final = 2 << 30
"""Selected columns of a row group of a parquet file after decompression."""
MAX_BATCH_BYTES: Final = 256 << 20
"""Rows of a parquet file that are read at a time."""
MAX_EXPANDED_BATCH_BYTES: Final = 2 * MAX_BATCH_BYTES
"""The same rows as Python objects."""
MAX_EXPANSION: Final = 200
"""Bytes of rows in memory per byte of their file."""
MIN_EXPANDED_BYTES: Final = 128 << 20
"""Bytes of rows in memory that any file may have."""
MAX_FOLDER_ENTRIES: Final = 10_000
"""Files and folders in a model folder."""
MAX_STATE_BYTES: Final = 16 << 20
"""state.json of a job folder."""
MAX_RECORD_BYTES: Final = 1 << 20
"""Line of a training history."""
MAX_HISTORY_BYTES: Final = 256 << 20
"""Training history of a job; one attempt writes at most 160 MiB."""
MAX_PASSAGES_CHARACTERS: Final = 1 << 20
"""Characters of all passages that a sample receives from a call; prompts hold fewer."""
MAX_LISTING_SECONDS: Final = 120
"""Time to list objects; an object store may send any number of pages of any size."""
