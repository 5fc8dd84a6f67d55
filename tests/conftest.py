"""Options and fixtures that all tests share."""

import gc
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

FOREIGN = ("FORCE_COLOR", "NO_COLOR", "CLICOLOR", "AWS_", "RAGGRPO_", "RAY_", "HF_", "KUBECONFIG")
ASKED = {
    "RAGGRPO_BEGINNING_JOBS",
    "RAGGRPO_FUZZ_ANSWERS",
    "RAGGRPO_FUZZ_SPECS",
    "RAGGRPO_FUZZ_STEPS",
}

# How long an example takes says nothing on a busy machine.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

# A shell that starts tests in the background has them, and all they start, ignore these two.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

# What a person's shell has set for other programs; tests set what they are about.
for name in list(os.environ):
    if name.lower().endswith("_proxy") or (name.startswith(FOREIGN) and name not in ASKED):
        del os.environ[name]

# What is imported and collected lives until the end: scanning it again and again takes a third of
# the time until the first test.
gc.disable()

GOLDEN = Path(__file__).parent / "golden"

Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write tests/golden anew; read the difference before committing it",
    )


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compare a text with tests/golden/<name>, or write it with --update-golden."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing: run pytest --update-golden"
        assert text == path.read_text(), (
            f"{path} differs: run pytest --update-golden, read the diff"
        )

    return check
