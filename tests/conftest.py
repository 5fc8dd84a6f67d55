"""Options and fixtures shared by all tests."""

import gc
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

USER_SETTINGS = (
    "FORCE_COLOR",
    "NO_COLOR",
    "CLICOLOR",
    "AWS_",
    "RAGGRPO_",
    "RAY_",
    "HF_",
    "KUBECONFIG",
)
TEST_SETTINGS = {
    "RAGGRPO_STARTING_JOBS",
    "RAGGRPO_FUZZ_ANSWERS",
    "RAGGRPO_FUZZ_SPECS",
    "RAGGRPO_FUZZ_STEPS",
}

# The duration of an example is meaningless on a busy machine.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

# Background processes of a shell ignore these signals, and so would their children.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

# Remove variables that the user's shell set for other programs; tests set what they need.
for name in list(os.environ):
    if name.lower().endswith("_proxy") or (
        name.startswith(USER_SETTINGS) and name not in TEST_SETTINGS
    ):
        del os.environ[name]

# Imported modules and collected tests live until the end: repeated garbage collections take a third
# of the time until the first test.
gc.disable()

GOLDEN = Path(__file__).parent / "golden"

Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite tests/golden; read the diff before committing it",
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
