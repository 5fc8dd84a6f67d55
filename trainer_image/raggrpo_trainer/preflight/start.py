"""Check StartCheckpoint: the checkpoint of another job that the job starts from."""

from pathlib import Path

from raggrpo_api.fields.change_class import change_class
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.start_from import StartFrom
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import CheckId
from raggrpo_trainer.checkpoint.compatibility import check_compatible
from raggrpo_trainer.checkpoint.fence import validity
from raggrpo_trainer.checkpoint.folder import Meta, discover
from raggrpo_trainer.checkpoint.start import start_checkpoint, start_segments
from raggrpo_trainer.errors import TrainerError

from .finding import Finding, finding_for, not_evaluated


def check_start(config: TrainerConfig, start: StartFrom) -> Finding:
    """Check that the checkpoint exists and fits the job; list the values that change.

    Inputs other than settings are compared when the attempt starts, which reads them.
    """
    own = Path(config.checkpoint.path)
    if discover(own, validity(own))[0]:
        return not_evaluated(CheckId.START_CHECKPOINT, "not used: the job has a checkpoint")
    try:
        checkpoint = start_checkpoint(config, start)
        inputs = _inputs(checkpoint.meta)
        check_compatible(checkpoint.meta, config, identity=inputs, start=start)
    except TrainerError as error:
        code = ExitCode(error.exit_code)
        return finding_for(CheckId.START_CHECKPOINT, [str(error)], "", code)
    changes = start_segments(checkpoint, config, start, identity=inputs)[-1].changes
    evidence = f"step {checkpoint.meta.step} of {checkpoint.folder}; changes: "
    return finding_for(CheckId.START_CHECKPOINT, [], evidence + ("; ".join(changes) or "none"))


def _inputs(meta: Meta) -> dict[str, object]:
    """Return the inputs of a checkpoint that are not settings."""
    values = meta.resume_values.items()
    return {name: value for name, value in values if change_class(JobSpec, name) is None}
