"""A hub with the repositories of the cluster tests, as a program for a pod.

`GET /sent` returns the bytes sent of each file. Requests for the second half of the large file wait
until `GET /release`, so that a download stops midway. `GET /files/org/result` returns the sizes of
the files of RESULT.
"""

import json
import sys
import threading
from pathlib import Path

from .hub_server import Fault, HubHandler, HubServer

PORT = 8000
MODEL, DATA = "Qwen/Qwen3-0.6B", "datasets/google-research-datasets/nq_open"
RESULT = "org/result"
"""Repository that a job creates."""
LARGE_FILE = "large.safetensors"
LARGE_BYTES = 128 * 2**20
HUGE_BYTES = 10**13


def add_repositories(hub: HubServer, folder: Path) -> None:
    """Add model and data of a folder, and one repository for each failure."""
    files = {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}
    model = {name: content for name, content in files.items() if not name.endswith(".jsonl")}
    rows = [json.loads(line) for line in files["train.jsonl"].splitlines()]
    lines = [json.dumps({"question": row["prompt"], "answer": [row["answer"]]}) for row in rows]
    card = "configs: [{config_name: nq_open, data_files: [{split: train, path: train.jsonl}]}]"
    data = {"README.md": f"---\n{card}\n---\n".encode(), "train.jsonl": "\n".join(lines).encode()}
    hub.add(MODEL, model)
    hub.add(DATA, data)
    hub.add("org/private", model).is_private = True
    hub.add("org/gated", model).is_gated = True
    hub.add("org/large", {"config.json": b"{}", LARGE_FILE: bytes(LARGE_BYTES)})
    hub.add("org/damaged", {"config.json": b"{}", "damaged.safetensors": b"1234"})
    hub.damaged["damaged.safetensors"] = b"1235"
    hub.add("org/huge", {"config.json": b"{}", "huge.safetensors": b"1234"})
    hub.sizes["huge.safetensors"] = HUGE_BYTES


def controls(released: threading.Event) -> Fault:
    """Return the handler of `/sent` and `/release`, which holds back the large file until then."""

    def control(handler: HubHandler) -> bool:
        if handler.path == "/release":
            released.set()
        if handler.path in ("/sent", "/release"):
            handler.answer(200, dict(handler.hub.sent))
            return True
        if handler.path == f"/files/{RESULT}":
            repository = handler.hub.repositories[RESULT]
            files = repository.commits[repository.branches["main"]]
            handler.answer(200, {path: len(content) for path, content in files.items()})
            return True
        start = handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0]
        is_late = handler.path.endswith(LARGE_FILE) and int(start) >= LARGE_BYTES // 2
        if not is_late or released.is_set():
            return False
        released.wait()
        handler.close_connection = True  # of the client that was killed
        return True

    return control


def main() -> None:
    folder, host = Path(sys.argv[1]), sys.argv[2]
    with HubServer(address=("0.0.0.0", PORT), host=host) as hub:
        add_repositories(hub, folder)
        hub.faults.append(controls(threading.Event()))
        threading.Event().wait()


if __name__ == "__main__":
    main()
