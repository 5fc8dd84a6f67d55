"""Read hostile files in a separate process: `python -m support.hostile.checks CHECK PATH…`."""

import json
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

MAX_CPU_SECONDS: Final = 20


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise AssertionError(f"more than {MAX_CPU_SECONDS} s of CPU time")


def data(path: Path) -> str:
    """Read a data file."""
    from raggrpo_api.spec.data import DataSpec
    from raggrpo_api.spec.retrieval import RetrievalSpec
    from raggrpo_api.spec.reward import RewardSpec
    from raggrpo_trainer.data.prompt_files import read_prompts
    from raggrpo_trainer.errors import TrainerError

    spec = DataSpec.model_validate({"trainFiles": [str(path)]})
    try:
        return f"{len(read_prompts([str(path)], spec, RetrievalSpec(), RewardSpec()))} rows"
    except TrainerError as error:
        return f"rejected: {error}"


def corpus(path: Path) -> str:
    """Read a corpus."""
    from raggrpo_retriever.corpus import CorpusError, load_corpus

    try:
        return f"{len(load_corpus(path))} rows"
    except CorpusError as error:
        return f"rejected: {error}"


def count(path: Path) -> str:
    """Count the passages of a corpus."""
    from raggrpo_trainer.preflight.embedding import count_passages
    from raggrpo_trainer.preflight.weights import Unreadable

    try:
        return f"{count_passages(path)} passages"
    except Unreadable as error:
        return f"rejected: {error}"


def vectors(path: Path) -> str:
    """Read the vectors of a corpus of two passages."""
    from raggrpo_retriever.corpus import CorpusError, load_vectors

    try:
        return f"shape {load_vectors(path, 2, 3).shape}"
    except CorpusError as error:
        return f"rejected: {error}"


def model(path: Path) -> str:
    """Check a model folder."""
    from raggrpo_api.trainer.preflight import CheckState
    from raggrpo_trainer.preflight.model import check_model

    finding = check_model(path).finding
    return f"{'rejected' if finding.state is CheckState.FAILED else 'accepted'}: {finding.evidence}"


def embedding(path: Path) -> str:
    """Embed a text with the model in a folder."""
    from raggrpo_api.spec.retrieval import EmbeddingModel
    from raggrpo_retriever.corpus import CorpusError
    from raggrpo_retriever.embedding import Embedder

    try:
        model = Embedder(EmbeddingModel.model_validate({"path": str(path), "maxTokens": 16}))
        return f"vectors {model.passages(['a' * 15_000_000, 'b']).shape}"
    except CorpusError as error:
        return f"rejected: {error}"


def history(path: Path) -> str:
    """Run all commands that read a job folder."""
    from typer.testing import CliRunner

    from raggrpo_cli.main import app

    texts = []
    for command in ("report --dir", "status --dir", "compare", "logs --tail 2 --dir", "diff"):
        result = CliRunner().invoke(app, [*command.split(), str(path)])
        expected = result.exception is None or isinstance(result.exception, SystemExit)
        if not expected and result.exception is not None:
            raise result.exception
        texts.append(f"{command}: {result.exit_code} {result.output}")
    return "\n".join(texts)


def imported(path: Path) -> str:
    """Import a configuration or script of verl, or validate a job file."""
    from typer.testing import CliRunner

    from raggrpo_cli.main import app

    command = ["validate"] if path.name == "job.yaml" else ["import", "verl"]
    result = CliRunner().invoke(app, [*command, str(path)])
    if not isinstance(result.exception, SystemExit | None):
        raise result.exception
    return f"{result.exit_code} {result.output}"


def response(path: Path) -> str:
    """Parse a response of each kind of service; the path ends with its content type.

    Parsing blocks the event loop of the trainer, so its CPU time is limited.
    """
    from raggrpo_api.spec.retrieval import RetrievalEndpoint
    from raggrpo_api.spec.reward import JudgeSpec
    from raggrpo_trainer.call_failures import CallFailed
    from raggrpo_trainer.http.responses import decode_response
    from raggrpo_trainer.retrieval.protocols import parse_response
    from raggrpo_trainer.rewards.grades import parse_grade

    def parse(name: str) -> object:
        value = decode_response(path.read_bytes(), f"{path.parent.name}/{path.name}")
        if name == "judge":
            judge = JudgeSpec.model_validate({"model": "m", "prompt": "{completion}"})
            return parse_grade(judge, value)
        fields = {"name": "kb", "url": "http://127.0.0.1:1/", "protocol": name}
        return parse_response(RetrievalEndpoint.model_validate(fields), value, 1)

    outcomes = []
    for name in ("Http", "SearchR1", "judge"):
        signal.setitimer(signal.ITIMER_VIRTUAL, MAX_CPU_SECONDS)
        try:
            outcomes.append(f"accepted by {name}: {str(parse(name))[:80]}")
        except (CallFailed, ValueError) as error:
            outcomes.append(f"rejected by {name}: {error}")
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return "; ".join(outcomes)


CHECKS: dict[str, Callable[[Path], str]] = {
    each.__name__: each
    for each in (data, corpus, count, vectors, model, embedding, history, imported, response)
}


def main(name: str, *paths: str) -> None:
    """Print one line of JSON for each path."""
    signal.signal(signal.SIGVTALRM, _interrupt)
    for path in paths:
        try:
            outcome = CHECKS[name](Path(path))
        except BaseException:
            outcome = f"crashed: {traceback.format_exc()}"
        print(json.dumps({"path": path, "outcome": outcome}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
