import subprocess
import sys

import pytest
from ray._private import ray_constants
from ray.experimental import internal_kv

from raggrpo_trainer.ray_start import skip_dashboard_wait


def test_dashboard_address_lookup_is_empty_and_other_keys_come_from_gcs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gcs_get(key: str, *, namespace: str) -> bytes | None:
        return None if key == ray_constants.DASHBOARD_ADDRESS else f"{namespace} {key}".encode()

    monkeypatch.setattr(internal_kv, "_internal_kv_get", gcs_get)
    skip_dashboard_wait()
    get = internal_kv._internal_kv_get
    assert get(ray_constants.DASHBOARD_ADDRESS, namespace="dashboard") == b""
    assert get("limit", namespace="ray") == b"ray limit"


def test_ray_start_does_not_import_libraries_of_other_commands() -> None:
    code = """
import sys
from raggrpo_trainer import ray_start
sys.argv += ["ray", "--version"]
try:
    ray_start.main()
finally:
    print({"pandas", "fastapi"} & set(sys.modules))
"""
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert completed.stdout.splitlines()[1:] == ["set()"], completed.stdout
