"""Run all checks concurrently and combine their findings into one result."""

import asyncio
import importlib.metadata
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from raggrpo_api.limits import MAX_PREFLIGHT_BYTES
from raggrpo_api.spec.resources import Device
from raggrpo_api.trainer.config import TrainerConfig, schema_digest
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import Check, CheckId, CheckState, Facts, PreflightResult

from .agent.check import check_agent
from .data import DataCheck, check_data
from .embedding import EmbeddingCheck, check_embeddings, corpus_facts
from .family import FamilyCheck, check_family
from .finding import Finding, finding_for, not_evaluated
from .lora import check_lora
from .model import ModelCheck, check_model
from .prompts import check_lengths
from .services import check_retrieval, check_rewards
from .start import check_start
from .storage import check_free, check_paths, check_space, check_writable, corpus_bytes
from .tokenizer import TokenizerCheck, check_tokenizer

log = logging.getLogger(__name__)
T = TypeVar("T")

EVIDENCE_BYTES = ((512, 512), (96, 512), (0, 384), (0, 192), (0, 64))
"""Byte limits of evidence, (other checks, failed or warned checks); the first that fits is used."""
_IMPORTANT = (CheckState.FAILED, CheckState.WARNED)
ELLIPSIS = "…"


async def run_checks(config: TrainerConfig, env: Mapping[str, str]) -> PreflightResult:
    """Run all checks except RulesOnFacts, which the operator evaluates; return the result."""
    (facts, findings), free, retrieval, rewards, agent = await asyncio.gather(
        asyncio.to_thread(_check_files, config, env),
        asyncio.to_thread(check_free, config),
        check_retrieval(config, env),
        check_rewards(config, env),
        _agent(config, env),
    )
    others = [free, retrieval, rewards, *agent, _gpu_memory(config)]
    return result_of(facts, [*findings, *others])


def result_of(facts: Facts, findings: Sequence[Finding]) -> PreflightResult:
    """Return the result in CheckId order; truncate evidence to fit into MAX_PREFLIGHT_BYTES."""
    order = list(CheckId)
    ordered = sorted(findings, key=lambda finding: order.index(finding.id))
    texts = [_one_line(finding.evidence) for finding in ordered]
    for other_limit, important_limit in EVIDENCE_BYTES:
        limits = [important_limit if f.state in _IMPORTANT else other_limit for f in ordered]
        short = [_truncated(text, limit) for text, limit in zip(texts, limits, strict=True)]
        shown = zip(ordered, short, strict=True)
        checks = [Check(id=each.id, state=each.state, evidence=text) for each, text in shown]
        result = PreflightResult(
            facts=facts, checks=checks, truncated=short != texts, exit_code=exit_code(findings)
        )
        if len(to_bytes(result)) <= MAX_PREFLIGHT_BYTES:
            break
    return result


def exit_code(findings: Sequence[Finding]) -> ExitCode:
    """Return the exit code of the most specific failure, or DONE.

    The code is RETRIEVAL_UNAVAILABLE only if all failures are outages of services.
    """
    codes = [f.exit_code for f in findings if f.state is CheckState.FAILED]
    general = (ExitCode.PREFLIGHT_FAILED, ExitCode.RETRIEVAL_UNAVAILABLE)
    special = [code for code in codes if code not in general]
    failed = [code for code in codes if code is ExitCode.PREFLIGHT_FAILED]
    return next(iter([*special, *failed, *codes]), ExitCode.DONE)


def to_bytes(result: PreflightResult) -> bytes:
    """Return the result as JSON for the operator."""
    return result.model_dump_json(by_alias=True).encode()


def _check_files(config: TrainerConfig, env: Mapping[str, str]) -> tuple[Facts, list[Finding]]:
    model = _guarded(
        lambda: check_model(Path(config.model.path), config.training.lora),
        lambda error: ModelCheck(_unexpected(CheckId.MODEL_READABLE, error), Facts(), None, 0),
    )
    data = _guarded(
        lambda: check_data(config),
        lambda error: DataCheck((_unexpected(CheckId.DATA_READABLE, error),), [], []),
    )
    family = _guarded(
        lambda: check_family(config),
        lambda error: FamilyCheck(_unexpected(CheckId.MODEL_FAMILY, error), None),
    )
    tokenizer = _guarded(
        lambda: check_tokenizer(config, model.tokenizer, model.embedding_rows),
        lambda error: TokenizerCheck(_unexpected(CheckId.TOKENIZER, error), ""),
    )
    lengths = _guarded(
        lambda: check_lengths(config, data.train, data.validation, model.tokenizer),
        lambda error: _unexpected(CheckId.SAMPLE_LENGTHS, error),
    )
    embeddings = _guarded(
        lambda: check_embeddings(config),
        lambda error: EmbeddingCheck(_unexpected(CheckId.EMBEDDING_READABLE, error), 0, 0, 0),
    )
    facts = model.facts.model_copy(
        update={
            "row_layout": family.row_layout,
            "prompt_start": tokenizer.prompt_start,
            "rows": len(data.train),
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
        *_lora(config),
        tokenizer.finding,
        embeddings.finding,
        *data.findings,
        lengths,
        check_writable(config, env),
        check_space(config, model.facts),
        *_start(config),
    ]


def _lora(config: TrainerConfig) -> Iterator[Finding]:
    if (lora := config.training.lora) is not None:
        yield _guarded(
            lambda: check_lora(Path(config.model.path), lora),
            lambda error: _unexpected(CheckId.LORA_TARGETS, error),
        )


def _start(config: TrainerConfig) -> Iterator[Finding]:
    if (start := config.training.start_from) is not None:
        yield _guarded(
            lambda: check_start(config, start),
            lambda error: _unexpected(CheckId.START_CHECKPOINT, error),
        )


def _guarded(check: Callable[[], T], failed: Callable[[Exception], T]) -> T:
    """Return `check()`, or `failed(error)` if it raises: files may cause errors of any type."""
    try:
        return check()
    except Exception as error:
        log.error("a preflight check failed with an unexpected exception: %r", error)
        log.debug("its traceback:", exc_info=True)
        return failed(error)


def _unexpected(check: CheckId, error: Exception) -> Finding:
    reason = f"{type(error).__name__}: {error}"
    return finding_for(check, [f"unexpected file format ({reason}); fix the files"], "")


async def _agent(config: TrainerConfig, env: Mapping[str, str]) -> list[Finding]:
    """Return the finding of the job's application, if it has one."""
    if (agent := config.rollout.agent) is None:
        return []
    try:
        return [await check_agent(config, agent, env)]
    except Exception as error:  # applications and tokenizers may cause errors of any type
        log.error("check AgentReady failed with an unexpected exception: %r", error)
        log.debug("its traceback:", exc_info=True)
        return [_unexpected(CheckId.AGENT_READY, error)]


def _gpu_memory(config: TrainerConfig) -> Finding:
    if config.resources.device is Device.CPU:
        return not_evaluated(CheckId.GPU_MEMORY, "the device is CPU")
    specified = config.resources.gpu_memory_gib
    memory = f"{specified} GiB as specified" if specified else "size unknown"
    return not_evaluated(CheckId.GPU_MEMORY, f"{memory}; verified in stage LoadingModel")


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def _truncated(text: str, limit: int) -> str:
    """Return at most `limit` bytes of UTF-8, with an ellipsis if `text` was truncated."""
    if len(text.encode()) <= limit:
        return text
    size = limit - len(ELLIPSIS.encode())
    return text.encode()[:size].decode(errors="ignore") + ELLIPSIS if size >= 0 else ""
