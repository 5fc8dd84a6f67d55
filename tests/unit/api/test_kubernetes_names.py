import re

import pytest

from raggrpo_api.fields import kubernetes_names as names
from raggrpo_api.fields.base import ABSOLUTE_PATH, CPU, MEMORY, OPTIONAL_PATH

TAKEN = {
    names.OBJECT_NAME: ["a", "a.b-c", "0" * 253],
    names.QUALIFIED_NAME: ["zone", "nvidia.com/gpu.product", "a/b", "A_b.c"],
    names.RESOURCE_NAME: ["nvidia.com/gpu", "habana.ai/gaudi"],
    names.LABEL_VALUE: ["", "a", "NVIDIA-H100-80GB-HBM3", "1.2_3", "a" * 63],
    names.DATA_KEY: ["key", ".key", "tls.crt", "A_b-c", "a.."],
    names.IMAGE: [
        "", "trainer", "raggrpo/trainer:0.1.0", "localhost:5000/a/b", "r.example.com/a__b/c-d:T.1",
        "a@sha256:" + "0" * 64, "a:1@sha256:" + "f" * 64, "[::1]:5000/a", "Host/a",
    ],
    ABSOLUTE_PATH: ["/", "/a", "/a/", "/a/.b", "/a/..b", "/a/...", "/a b/\u4e2d", "/$(HOME)"],
    OPTIONAL_PATH: ["", "/a"],
    CPU: ["", "1", "1.5", "500m", "0"],
    MEMORY: ["", "1", "0.5Gi", "64Gi", "400M"],
}  # fmt: skip
REFUSED = {
    names.OBJECT_NAME: ["", "A", "a_b", "-a", "a-", "a..b", "a/b", "a\n"],
    names.QUALIFIED_NAME: ["", "a/b/c", "/a", "a/", "a b", "-a", "A/b", "a" * 64],
    names.RESOURCE_NAME: ["gpu", "nvidia.com/", "nvidia..com/gpu", "-/x"],
    names.LABEL_VALUE: ["-", "a-", "a b", "a" * 64, "a/b", "a\n"],
    names.DATA_KEY: ["", ".", "..", "..a", "a/b", "a b"],
    names.IMAGE: [
        "A", "a/B", "a:", "a@", "a:b:c", "a@sha256:0", "http://a", "a b", "a\n", "-a", "a//b", "/a",
        "a:-b", "a:" + "t" * 129,
    ],
    ABSOLUTE_PATH: [
        "", "a", "//", "//etc", "/a//b", "/.", "/..", "/a/../b", "/a/.", "/a\n", "/\x00", "/a\x7f",
        "/\x85",
    ],
    CPU: ["m", "-1", "1e3", "1Gi", "999999"],
    MEMORY: ["5m", "1 Gi", "1e9", "Gi", "1.0001Gi"],
}  # fmt: skip


@pytest.mark.parametrize("pattern", TAKEN)
def test_pattern_matches_valid_kubernetes_names(pattern: str) -> None:
    assert [text for text in TAKEN[pattern] if not re.fullmatch(pattern, text)] == []


@pytest.mark.parametrize("pattern", REFUSED)
def test_pattern_does_not_match_invalid_kubernetes_names(pattern: str) -> None:
    assert [text for text in REFUSED[pattern] if re.fullmatch(pattern, text)] == []
