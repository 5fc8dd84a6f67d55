"""`spec.output`: where the results of a job are uploaded."""

from typing import Annotated

from raggrpo_api.fields.base import ApiModel
from raggrpo_api.fields.reach import Server
from raggrpo_api.fields.source import PushUrl


class OutputSpec(ApiModel):
    """Results of a complete job; credentials and mirrors are variables in env."""

    push: Annotated[PushUrl | None, Server()] = None
    """URL to upload the exported model, its adapter, the best checkpoint, the model card and the
    report to, such as `hf://org/name`; a repository that does not exist is created as private."""
