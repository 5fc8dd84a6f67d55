"""Rules on the target of the results."""

from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_operator.core.spec.violation import Reason

from .base.spec_rule import spec_rule

_FOLDER = "{url}.split('@')[0] + '/'"
"""Expression for a URL without revision or digest, as the URL of a folder."""


@spec_rule(
    "spec",
    field="output.push",
    reason=Reason.PUSH_CHANGES_SOURCE,
    message="the target is the source of the initial model, which the push would change",
    remedy="specify another repository or folder",
    if_specified=("output.push", "model.source"),
    cel=f"!({_FOLDER.format(url='self.output.push')}).startsWith("
    f"{_FOLDER.format(url='self.model.source')})",
)
def push_keeps_the_source(spec: JobSpec) -> bool:
    """Reject a target within the source of the model."""
    if not spec.output.push or not spec.model.source:
        return True
    return not _folder(spec.output.push).startswith(_folder(spec.model.source))


def _folder(url: str) -> str:
    return url.partition("@")[0] + "/"
