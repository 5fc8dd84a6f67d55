"""`python -m raggrpo_retriever`: serve one corpus over HTTP until SIGTERM.

The port opens before the index is loaded; until the index is loaded, `/healthz` returns 503. If
RAGGRPO_RETRIEVER_TOKEN is set, all other paths require this bearer token. On loopback, `Host` must
name a loopback address. Exit
codes: 2 for invalid arguments or an address in use; 3 if the corpus cannot be used, with one line
on standard error; 1 if the server exits for any other reason before the index is loaded.
"""

import argparse
import ipaddress
import logging
import os
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from pydantic import ValidationError

from raggrpo_api import names
from raggrpo_api.fields.url_host import url_host
from raggrpo_api.spec.retrieval import EmbeddingModel, IndexKind, ManagedRetriever, Pooling

from .access import Access
from .connection import MAX_HEAD_BYTES, LimitedConnection
from .corpus import CorpusError
from .loading import load_index
from .server import IndexHolder, build_app

EXIT_USAGE = 2
EXIT_CORPUS = 3
GRACE_SECONDS = 2  # for open requests after SIGTERM


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server and return the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        spec = _spec(options)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        parser.error(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
    holder = IndexHolder(reason=f"loading {options.corpus}")
    try:
        listener = _listen(options.host, options.port)
    except (OSError, OverflowError) as error:
        print(
            f"error: cannot listen on {url_host(options.host)}:{options.port} ({error}); "
            "choose another --host or --port",
            file=sys.stderr,
        )
        return EXIT_USAGE
    server = uvicorn.Server(
        uvicorn.Config(
            build_app(holder, _access(options.host)),
            http=LimitedConnection,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            ws="none",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
    )
    failures: list[CorpusError] = []

    def report(reason: str) -> None:
        holder.reason = reason

    def load() -> None:
        try:
            holder.index = load_index(spec, report)
        except CorpusError as error:
            failures.append(error)
        finally:
            server.should_exit |= holder.index is None

    # A daemon thread, so that a long load does not delay the exit of the process.
    threading.Thread(target=load, name="load-index", daemon=True).start()
    _announce(listener, options.port_file)
    server.run(sockets=[listener])
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
        return EXIT_CORPUS
    return 0 if holder.index is not None else 1


def _parser() -> argparse.ArgumentParser:
    defaults = EmbeddingModel(path="/")
    parser = argparse.ArgumentParser(
        prog="raggrpo_retriever", description="Serve the passages of one corpus over HTTP."
    )
    parser.add_argument(
        "--corpus", type=_absolute, required=True, help="corpus file (.jsonl or .parquet)"
    )
    parser.add_argument("--index", type=IndexKind, choices=list(IndexKind), default=IndexKind.BM25)
    dense = parser.add_argument_group("options of the indexes Dense and Hybrid")
    dense.add_argument(
        "--embedding", type=_absolute, help="folder of the embedding model (Hugging Face format)"
    )
    dense.add_argument("--pooling", type=Pooling, choices=list(Pooling), default=defaults.pooling)
    dense.add_argument("--query-prefix", default="")
    dense.add_argument("--passage-prefix", default="")
    dense.add_argument("--no-normalize", dest="normalize", action="store_false")
    dense.add_argument("--max-tokens", type=int, default=defaults.max_tokens)
    dense.add_argument(
        "--vectors",
        type=_absolute,
        help=".npy file of precomputed passage vectors, float32 [passages, dimension]",
    )
    dense.add_argument("--index-path", type=_absolute, help="folder in which to cache the index")
    dense.add_argument("--hnsw-above", type=int, default=ManagedRetriever(corpus="/").hnsw_above)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument(
        "--port", type=int, default=0, help="port to listen on (default: any free port)"
    )
    parser.add_argument("--port-file", type=Path, help="file to write the port to")
    return parser


def _spec(options: argparse.Namespace) -> ManagedRetriever:
    """Return the retriever that the arguments specify. Raises ValidationError."""
    embedding = None
    if options.embedding is not None:
        embedding = EmbeddingModel(
            path=options.embedding,
            pooling=options.pooling,
            query_prefix=options.query_prefix,
            passage_prefix=options.passage_prefix,
            normalize=options.normalize,
            max_tokens=options.max_tokens,
        )
    return ManagedRetriever(
        corpus=options.corpus,
        index=options.index,
        embedding=embedding,
        vectors=options.vectors or "",
        index_path=options.index_path or "",
        hnsw_above=options.hnsw_above,
    )


def _absolute(path: str) -> str:
    return os.path.abspath(path)


def _listen(host: str, port: int) -> socket.socket:
    """Listen on an address; `::` includes all IPv4 addresses, also on a host without IPv6."""
    if host == "::" and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, dualstack_ipv6=host == "::")


def _access(host: str) -> Access:
    """Return the access to a server on this address; the token is in the environment."""
    return Access(os.environ.get(names.ENV_RETRIEVER_TOKEN, ""), is_local=_is_loopback(host))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _announce(listener: socket.socket, port_file: Path | None) -> None:
    host, port = listener.getsockname()[:2]
    if port_file is not None:
        draft = port_file.with_name(f"{port_file.name}.{os.getpid()}")
        draft.write_text(f"{port}\n")
        draft.replace(port_file)  # atomic: a reader never sees a partial number
    print(f"listening on {url_host(host)}:{port}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
