import pytest
from pydantic import ValidationError

from raggrpo_api.limits import MAX_PREFLIGHT_BYTES
from raggrpo_api.trainer.staging import (
    MAX_SOURCES,
    TRANSIENT_REASONS,
    UPLOADING,
    SourceRequest,
    SourceRole,
    StagedSource,
    StagingProgress,
    StagingReason,
    StagingResult,
    progress_text,
)


def test_request_with_invalid_source_names_field_and_problem() -> None:
    with pytest.raises(ValidationError, match="it does not start with a known scheme"):
        SourceRequest(field="spec.model.source", url="ftp://host/a", role=SourceRole.MODEL)


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (StagingProgress(field="spec.model.source"), "Staging spec.model.source"),
        (
            StagingProgress(bytes_done=3_100_000_000, bytes_total=15_200_000_000, seconds_left=40),
            "Staging 3.1 of 15.2 GB, 40 s left",
        ),
        (StagingProgress(bytes_total=2_000_000_000), "Staging 0.0 of 2.0 GB"),
        (
            StagingProgress(bytes_total=1, field="spec.model.source", message="Waiting for pod-a"),
            "Waiting for pod-a (spec.model.source)",
        ),
    ],
)
def test_progress_text_has_sizes_and_remaining_time(progress: StagingProgress, text: str) -> None:
    assert progress_text(progress) == text


def test_progress_text_of_push_has_another_verb() -> None:
    progress = StagingProgress(bytes_done=500_000_000, bytes_total=2_000_000_000)
    assert progress_text(progress, UPLOADING) == "Uploading 0.5 of 2.0 GB"


def test_result_of_a_full_request_fits_into_termination_message() -> None:
    staged = StagedSource(
        field="spec.data.validationSources[10]",
        path=f"/sources/{'n' * 64}-01234567/{'a' * 64}/train-00000-of-00001.parquet",
        revision=f"sha256:{'a' * 64}",
        digest="b" * 64,
        bytes=10**12,
        seconds=3600.123,
    )
    result = StagingResult(staged=[staged] * MAX_SOURCES)
    assert len(result.model_dump_json(by_alias=True).encode()) <= MAX_PREFLIGHT_BYTES


def test_transient_reasons_exclude_what_a_user_must_change() -> None:
    assert StagingReason.UNREACHABLE in TRANSIENT_REASONS
    assert StagingReason.UNKNOWN_REVISION not in TRANSIENT_REASONS
