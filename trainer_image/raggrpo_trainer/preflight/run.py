"""Run all checks concurrently and combine their findings into one small result."""

import asyncio
import importlib.metadata
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from raggrpo_api.limits import MAX_PREFLIGHT_BYTES
from raggrpo_api.spec.resources import Device
from raggrpo_api.trainer.config import TrainerConfig, schema_digest
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import Check, CheckId, CheckState, Facts, PreflightResult

from .data import Data, check_data, check_lengths
from .embedding import check_embeddings, corpus_facts
from .family import FamilyCheck, check_family
from .finding import Finding, finding_for, not_evaluated
from .model import Model, check_model
from .services import check_retrieval, check_rewards
from .storage import check_free, check_paths, check_space, check_writable, corpus_bytes

log = logging.getLogger(__name__)
T = TypeVar("T")

EVIDENCE_BYTES = ((512, 512), (96, 512), (0, 384), (0, 192), (0, 96))
"""Evidence limits for passed and failed checks; the first pair that makes the result fit wins."""
ELLIPSIS = "…"


async def run_checks(config: TrainerConfig, env: Mapping[str, str]) -> PreflightResult:
    """Return every check's outcome except RulesOnFacts, which the operator evaluates."""
    (facts, findings), free, retrieval, rewards = await asyncio.gather(
        asyncio.to_thread(_check_files, config),
        asyncio.to_thread(check_free, config),
        check_retrieval(config, env),
        check_rewards(config, env),
    )
    return result_of(facts, [*findings, free, retrieval, rewards, _gpu_memory(config)])


def result_of(facts: Facts, findings: Sequence[Finding]) -> PreflightResult:
    """Return the result in CheckId order, with evidence shortened until it fits."""
    order = list(CheckId)
    ordered = sorted(findings, key=lambda finding: order.index(finding.id))
    texts = [_one_line(finding.evidence) for finding in ordered]
    for of_passed, of_failed in EVIDENCE_BYTES:
        limits = [of_failed if f.state is CheckState.FAILED else of_passed for f in ordered]
        short = [_shortened(text, limit) for text, limit in zip(texts, limits, strict=True)]
        shown = zip(ordered, short, strict=True)
        checks = [Check(id=each.id, state=each.state, evidence=text) for each, text in shown]
        result = PreflightResult(
            facts=facts, checks=checks, truncated=short != texts, exit_code=exit_code(findings)
        )
        if len(to_bytes(result)) <= MAX_PREFLIGHT_BYTES:
            break
    return result


def exit_code(findings: Sequence[Finding]) -> ExitCode:
    """Return the first failure's specific code, PREFLIGHT_FAILED if none has one, else DONE.

    RETRIEVAL_UNAVAILABLE only if nothing but services that are down stands in the way.
    """
    codes = [f.exit_code for f in findings if f.state is CheckState.FAILED]
    general = (ExitCode.PREFLIGHT_FAILED, ExitCode.RETRIEVAL_UNAVAILABLE)
    special = [code for code in codes if code not in general]
    failed = [code for code in codes if code is ExitCode.PREFLIGHT_FAILED]
    return next(iter([*special, *failed, *codes]), ExitCode.DONE)


def to_bytes(result: PreflightResult) -> bytes:
    """Return the JSON that the operator reads."""
    return result.model_dump_json(by_alias=True).encode()


def _check_files(config: TrainerConfig) -> tuple[Facts, list[Finding]]:
    model = _guarded(
        lambda: check_model(Path(config.model.path)),
        lambda error: Model(_unforeseen(CheckId.MODEL_READABLE, error), Facts(), None),
    )
    data = _guarded(
        lambda: check_data(config),
        lambda error: Data((_unforeseen(CheckId.DATA_READABLE, error),), []),
    )
    family = _guarded(
        lambda: check_family(config),
        lambda error: FamilyCheck(_unforeseen(CheckId.MODEL_FAMILY, error), None),
    )
    lengths = _guarded(
        lambda: check_lengths(config, data.prompts, model.tokenizer),
        lambda error: _unforeseen(CheckId.SAMPLE_LENGTHS, error),
    )
    embeddings = check_embeddings(config)
    facts = model.facts.model_copy(
        update={
            "row_layout": family.row_layout,
            "rows": len(data.prompts),
            "corpus_bytes": corpus_bytes(config),
            **corpus_facts(embeddings),
            "ray_version": importlib.metadata.version("ray"),
            "schema_digest": schema_digest(),
        }
    )
    return facts, [
        check_paths(config),
        model.finding,
        family.finding,
        embeddings.finding,
        *data.findings,
        lengths,
        check_writable(config),
        check_space(config, model.facts),
    ]


def _guarded(check: Callable[[], T], failed: Callable[[Exception], T]) -> T:
    """Return what a check of foreign files found, or that it failed, whatever they hold."""
    try:
        return check()
    except Exception as error:
        log.exception("a check of the job's files failed")
        return failed(error)


def _unforeseen(check: CheckId, error: Exception) -> Finding:
    what = f"{type(error).__name__}: {error}"
    return finding_for(
        check, [f"the files have a form that nobody foresaw ({what}); mend them"], ""
    )


def _gpu_memory(config: TrainerConfig) -> Finding:
    if config.resources.device is Device.CPU:
        return not_evaluated(CheckId.GPU_MEMORY, "device CPU")
    given = config.resources.gpu_memory_gib
    why = f"{given} GiB as given" if given else "not known here"
    return not_evaluated(CheckId.GPU_MEMORY, f"{why}; preflight has no GPU, LoadingModel verifies")


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def _shortened(text: str, limit: int) -> str:
    """Return at most `limit` bytes of UTF-8, ending in an ellipsis if text was cut."""
    if len(text.encode()) <= limit:
        return text
    room = limit - len(ELLIPSIS.encode())
    return text.encode()[:room].decode(errors="ignore") + ELLIPSIS if room >= 0 else ""
