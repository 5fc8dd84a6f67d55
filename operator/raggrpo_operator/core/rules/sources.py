"""Rules on the sources of models and data."""

from collections.abc import Iterator

from raggrpo_api.spec.data import DataSpec
from raggrpo_api.spec.model import ModelSpec
from raggrpo_operator.core.spec.sources import source_urls, staging_folder
from raggrpo_operator.core.spec.violation import Reason, Violation

from .base.cel import is_filled
from .base.rule_input import RuleInput
from .base.spec_rule import spec_rule
from .paths import volume_problem


@spec_rule(
    "spec.model",
    reason=Reason.ONE_SOURCE_OF_VALUE,
    message="exactly one of path and source is required",
    remedy="specify a folder on a volume, or a source such as hf://org/name@revision",
    cel=f"{is_filled('path')} != {is_filled('source')}",
    as_specified=True,
)
def model_has_one_source(model: ModelSpec) -> bool:
    """Require either a folder or a URL."""
    return bool(model.path) != bool(model.source)


@spec_rule(
    "spec.data",
    reason=Reason.ONE_SOURCE_OF_VALUE,
    message="exactly one of trainFiles and sources is required",
    remedy="specify files on a volume, or sources such as hf://datasets/org/name#split=train",
    cel=f"{is_filled('trainFiles')} != {is_filled('sources')}",
    as_specified=True,
)
def data_has_one_source(data: DataSpec) -> bool:
    """Require either files or URLs of training data."""
    return bool(data.train_files) != bool(data.sources)


@spec_rule(
    "spec.data",
    reason=Reason.ONE_SOURCE_OF_VALUE,
    message="validationFiles and validationSources exclude each other",
    remedy="remove one of the two",
    cel=f"!({is_filled('validationFiles')} && {is_filled('validationSources')})",
    as_specified=True,
)
def validation_has_one_source(data: DataSpec) -> bool:
    """Require files or URLs of held-out data, not both."""
    return not (data.validation_files and data.validation_sources)


def staging_folder_is_writable(inputs: RuleInput) -> Iterator[Violation]:
    """Require a writable volume for downloads, if the job has volumes."""
    spec = inputs.spec
    if not source_urls(spec) or not spec.volumes:
        return
    if message := volume_problem(staging_folder(spec), spec.volumes):
        remedy = "specify a folder on a writable volume"
        yield Violation("spec.staging.path", Reason.STAGING_PATH_UNFIT, message, remedy)
