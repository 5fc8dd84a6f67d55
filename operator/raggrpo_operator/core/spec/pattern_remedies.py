"""Remedies for strings that do not match the pattern of their field."""

from collections.abc import Mapping

from raggrpo_api.fields import addresses, base, json_values, kubernetes_names, source
from raggrpo_api.spec.agent import OPTIONAL_URL_PATH, PARSER, URL_PATH
from raggrpo_api.spec.lora import LORA_TARGET
from raggrpo_api.spec.monitoring import WANDB_PROJECT
from raggrpo_api.spec.retrieval import BODY_FIELD
from raggrpo_api.spec.reward import JUDGE_MODEL
from raggrpo_api.spec.start_from import START_STEP

_NAME = "use at most 253 lower-case letters, digits, hyphens and dots"
_URL_PATH = "write a path such as /v1/answer, without query and without dots at a start"

_BY_PATTERN: Mapping[str, str] = {
    kubernetes_names.NAMESPACE_NAME: "use at most 63 lower-case letters, digits and hyphens",
    kubernetes_names.POD_SELECTOR: "write labels such as app=support,tier=web",
    kubernetes_names.OBJECT_NAME: _NAME,
    kubernetes_names.OPTIONAL_OBJECT_NAME: _NAME,
    kubernetes_names.QUALIFIED_NAME: "write a label key such as nvidia.com/gpu.product",
    kubernetes_names.OPTIONAL_QUALIFIED_NAME: "write a taint key such as nvidia.com/gpu",
    kubernetes_names.RESOURCE_NAME: "write a resource name such as nvidia.com/gpu",
    kubernetes_names.LABEL_VALUE: "use at most 63 letters, digits, hyphens, underscores and dots",
    kubernetes_names.DATA_KEY: "use letters, digits, hyphens, underscores and dots",
    kubernetes_names.IMAGE: "write an image such as registry.example.com/raggrpo/trainer:0.1.0",
    addresses.HTTP_URL: "specify a full URL such as http://host:8000/retrieve, in ASCII",
    addresses.BACKUP_URL: "specify a folder such as s3://bucket/folder or file:///mnt/folder",
    base.CPU: "write an amount such as 16 or 500m",
    base.MEMORY: "write an amount such as 64Gi",
    base.PLAIN_TEXT: "remove control characters",
    WANDB_PROJECT: "use letters, digits, hyphens and underscores",
    json_values.JSON_PATH: "write a path such as payload.hits or groups[*].docs",
    JUDGE_MODEL: "use printable ASCII",
    LORA_TARGET: "write AllLinear, or the last components of a layer's path: self_attn.q_proj",
    URL_PATH: _URL_PATH,
    OPTIONAL_URL_PATH: _URL_PATH,
    PARSER: "write the name of one of vLLM's parsers, such as hermes",
    source.SOURCE_PATTERN: "write a URL such as hf://org/name@revision, in ASCII",
    source.PUSH_PATTERN: "write a URL such as hf://org/name, s3://bucket/folder or "
    "oci://registry.example.com/name:tag, in ASCII",
    START_STEP: "specify Newest, Best or the number of a step",
    BODY_FIELD: "use at most 64 printable ASCII characters",
}

_OF_MODEL_NAMES = "use printable ASCII without spaces, such as gpt-4o or bge-*"
_BY_FIELD: Mapping[str, str] = {
    "python": "write package.module:function",
    "command": "remove control characters",
    "args": "remove control characters",
    "name": "use letters and digits, with underscores in a variable and hyphens in other names",
    "jobRef": "write the name of a job: lower-case letters, digits and hyphens",
    "fields": "use letters, digits and underscores",
    "value": "remove control characters and, in a header, characters that are not ASCII",
    "operator": "write Exists or Equal",
    "effect": "write NoSchedule, PreferNoSchedule or NoExecute",
}
"""Remedies by field, for patterns that only one field uses."""

_BY_FIELD_FIRST: Mapping[str, str] = {"models": _OF_MODEL_NAMES, "policyModels": _OF_MODEL_NAMES}
"""Remedies by field, for fields whose pattern is that of other values."""


def remedy_for(pattern: str, field: str) -> str:
    """Return the remedy for a field with this pattern."""
    return (
        _BY_FIELD_FIRST.get(field)
        or _BY_PATTERN.get(pattern)
        or _BY_FIELD.get(field)
        or f"use a value that matches the pattern {pattern}"
    )
