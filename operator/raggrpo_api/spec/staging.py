"""`spec.staging`: where downloaded models and data are stored."""

from raggrpo_api.fields.base import ApiModel, OptionalPath


class StagingSpec(ApiModel):
    """Storage of downloaded models and data; credentials and mirrors are variables in env."""

    path: OptionalPath = ""
    """Folder on a writable volume, which several jobs may share; empty: `staged` on the volume of
    checkpoint.path."""
