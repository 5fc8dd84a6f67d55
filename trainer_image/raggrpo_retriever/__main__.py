"""`python -m raggrpo_retriever`: serve one corpus over HTTP until SIGTERM.

The port opens before the index is loaded; until then `/healthz` returns 503. Exit codes: 3 if the
corpus is unusable (one line says why), 2 for bad arguments or an address that cannot be used.
"""

import argparse
import logging
import os
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from raggrpo_api.spec.retrieval import IndexKind

from .corpus import CorpusError, load_corpus, load_vectors
from .index import Bm25Index, DenseIndex, Index
from .server import Shelf, build_app

EXIT_USAGE = 2
EXIT_CORPUS = 3
SECONDS_FOR_OPEN_REQUESTS = 2  # after SIGTERM


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server and return the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    parser = _parser()
    options = parser.parse_args(arguments)
    shelf = Shelf(reason=f"loading {options.corpus}")
    try:
        listener = _listen(options.host, options.port)
    except (OSError, OverflowError) as error:
        print(
            f"error: cannot listen on {options.host}:{options.port} ({error}); "
            "choose another --host or --port",
            file=sys.stderr,
        )
        return EXIT_USAGE
    server = uvicorn.Server(
        uvicorn.Config(
            build_app(shelf),
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=SECONDS_FOR_OPEN_REQUESTS,
        )
    )
    refusals: list[CorpusError] = []

    def load() -> None:
        try:
            shelf.index = load_index(options.corpus, options.index, options.vectors)
        except CorpusError as error:
            refusals.append(error)
        finally:
            server.should_exit |= shelf.index is None

    # A daemon thread, so that a long load does not delay the process's exit.
    threading.Thread(target=load, name="load-index", daemon=True).start()
    _announce(listener, options.port_file)
    server.run(sockets=[listener])
    for refusal in refusals:
        print(f"error: {refusal}", file=sys.stderr)
        return EXIT_CORPUS
    return 0 if shelf.index is not None else 1


def load_index(corpus: Path, kind: IndexKind, vectors: Path | None) -> Index:
    """Build the index; unless given, vectors are read from the corpus's path with suffix `.npy`.

    Raises CorpusError.
    """
    passages = load_corpus(corpus)
    match kind:
        case IndexKind.BM25:
            return Bm25Index(passages)
        case IndexKind.DENSE:
            beside = vectors or corpus.with_suffix(".npy")
            return DenseIndex(passages, load_vectors(beside, len(passages)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="raggrpo_retriever", description="Serve one corpus.")
    parser.add_argument("--corpus", type=Path, required=True, help=".jsonl or .parquet file")
    parser.add_argument("--index", type=IndexKind, choices=list(IndexKind), default=IndexKind.BM25)
    parser.add_argument("--vectors", type=Path, help=".npy, float32 [passages, dimension]")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: a free one (default)")
    parser.add_argument("--port-file", type=Path, help="file that the port is written to")
    return parser


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def _announce(listener: socket.socket, port_file: Path | None) -> None:
    host, port = listener.getsockname()[:2]
    if port_file is not None:
        unfinished = port_file.with_name(f"{port_file.name}.{os.getpid()}")
        unfinished.write_text(f"{port}\n")
        unfinished.replace(port_file)  # atomic: a waiting reader never sees half a number
    print(f"listening on {host}:{port}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
