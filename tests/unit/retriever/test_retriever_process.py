import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from raggrpo_retriever.__main__ import main
from support.builders.data.rows import write_rows
from support.builders.trainer.embedding_model import write_embedding_model
from support.processes.waiting import wait_for

DEADLINE_SECONDS = 30


@contextmanager
def make_retriever(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "raggrpo_retriever", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def make_corpus(folder: Path) -> Path:
    records = [{"id": str(n), "contents": f"word{n} shared"} for n in range(3)]
    return write_rows(folder / "corpus.jsonl", records)


def port_of(file: Path) -> int:
    wait_for(file.exists)
    return int(file.read_text())


def is_healthy(port: int) -> bool:
    return httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200


def test_server_writes_port_file_and_exits_on_sigterm(tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    model = write_embedding_model(tmp_path / "model", ["word0", "word1", "word2", "shared"])
    arguments = ["--corpus", str(make_corpus(tmp_path)), "--index", "Hybrid"]
    arguments += ["--embedding", str(model), "--index-path", str(tmp_path / "indexes")]

    with make_retriever(*arguments, "--port-file", str(port_file)) as process:
        port = port_of(port_file)
        wait_for(lambda: is_healthy(port), seconds=60)
        answer = httpx.post(f"http://127.0.0.1:{port}/retrieve", json={"query": "word1 shared"})
        process.send_signal(signal.SIGTERM)
        code = process.wait(DEADLINE_SECONDS)
        assert process.stderr is not None
        assert process.stderr.read() == ""

    assert answer.json()["result"][0][0]["id"] == "1"
    assert code == -signal.SIGTERM


def write_slow_corpus(corpus: Path) -> None:
    """Write a corpus that takes longer to load than a request takes."""
    rows = (f'{{"id": "{number}", "contents": "text {number}"}}\n' for number in range(100_000))
    corpus.write_text("".join(rows))


@pytest.mark.row("B21")
def test_health_returns_503_until_corpus_is_loaded(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    port_file = tmp_path / "port"
    write_slow_corpus(corpus)
    with make_retriever("--corpus", str(corpus), "--port-file", str(port_file)):
        port = port_of(port_file)
        early = httpx.get(f"http://127.0.0.1:{port}/healthz")
        wait_for(lambda: is_healthy(port))

    assert (early.status_code, early.json()) == (503, {"error": f"loading {corpus}"})


def test_sigterm_is_handled_during_corpus_load(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    port_file = tmp_path / "port"
    write_slow_corpus(corpus)
    with make_retriever("--corpus", str(corpus), "--port-file", str(port_file)) as process:
        assert not is_healthy(port_of(port_file))
        process.send_signal(signal.SIGTERM)
        code = process.wait(DEADLINE_SECONDS)

    assert code == -signal.SIGTERM


def test_invalid_corpus_exits_with_3_and_one_line(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "1", "contents": "fine"}\n{"id": "2"}\n')
    with make_retriever("--corpus", str(corpus)) as process:
        _, errors = process.communicate(timeout=DEADLINE_SECONDS)

    assert process.returncode == 3
    assert errors == (
        f'error: {corpus}, line 2: "contents" is missing, blank or not a string; '
        'write a record such as {"id": "7", "contents": "..."}, or remove it\n'
    )


def test_port_in_use_exits_with_2_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code = main(["--corpus", str(make_corpus(tmp_path)), "--port", str(port)])

    errors = capsys.readouterr().err
    assert code == 2
    assert errors.startswith(f"error: cannot listen on 127.0.0.1:{port} (")
    assert errors.count("\n") == 1


def test_invalid_port_exits_with_2(tmp_path: Path) -> None:
    assert main(["--corpus", str(make_corpus(tmp_path)), "--port", "99999"]) == 2


def test_unknown_index_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["--corpus", "corpus.jsonl", "--index", "FAISS"])
    assert raised.value.code == 2
    assert "invalid IndexKind value: 'FAISS'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--index", "Dense"], "index Dense requires an embedding model"),
        (
            ["--index", "Hybrid", "--embedding", "/no/model", "--index-path", "/tmp/indexes"],
            "/no/model: cannot load the embedding model",
        ),
    ],
)
def test_incomplete_dense_index_exits_with_3_and_one_line(
    tmp_path: Path, arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--corpus", str(make_corpus(tmp_path)), *arguments]) == 3
    errors = capsys.readouterr().err
    assert expected in errors
    assert errors.count("\n") == 1


def test_bm25_keeps_an_installed_jax_off_the_gpu(tmp_path: Path) -> None:
    jax = tmp_path / "jax"
    jax.mkdir()
    (jax / "__init__.py").write_text("import os\nprint(os.environ['JAX_PLATFORMS'])\n")
    (jax / "lax.py").write_text("def top_k(*_): ...\n")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", "import raggrpo_retriever.index"],
        capture_output=True,
        text=True,
        env=env,
        check=True,
    )
    assert done.stdout.split() == ["cpu"]
