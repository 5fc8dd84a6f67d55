"""Adversarial jobs that pass the CRD's schema: injections, limits, odd Unicode, huge texts.

They are generated from the schema, so new fields are included automatically.
"""

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raggrpo_operator.crd import job_schema
from support.builders.operator.jobs import make_raw_job

SPEC = job_schema()["properties"]["spec"]

TEXT_BLOCKS = ("checkpoint", "data", "env", "image", "imagePullSecrets", "model", "monitoring")
TEXT_BLOCKS += ("resources", "retrieval", "reward", "scheduling", "volumes")
BLOCKS = (*sorted(SPEC["properties"]), *TEXT_BLOCKS * 2)
"""Blocks to change. Those with names, paths and addresses are listed more often."""

FRAGMENTS: Sequence[str] = (
    "\n", "\r\n", "\x00", "\x1b[31m", "\x7f", "\x85", "\t", " ", "'", '"', "`id`", "$(HOME)",
    "$(RAGGRPO_CONFIG)", "$$(A)", "${HOME}", "$HOME", ";id", "&&id", "|id", "--", "-", "..", "/..",
    "/../..", "//", "/./", "\\", "%00", "%0a", "%2e%2e", "{{x}}", "{prompt}", "{0.__class__}", "{",
    "}", "<script>", "&amp;", "\u202e", "\u2028", "\ufeff", "\u2100", "ﬀ", "ﹼ", "。", "é",
    "中", "😀",
    "\U000e0001", "yes", "null", "~", "!!python/object:os.system", "@", "user:pass@", "?sig=abc",
    "?X-Amz-Signature=abc", "#frag", "[", "]", "[::1]", ":0", ":65536", ":99999999999", "=", ",",
    "*", "_", ".", "A", "0", "kubernetes.io/", "system-", "sha256:",
)  # fmt: skip
NAMES: Sequence[str] = (
    "a", "a.b", "a-b", "A_b.C", "a" * 44, "a" * 63, "a" * 64, "a" * 253, ".", "..", "..a", ".a",
    "-a", "a-", "a..b", "a b", "UPPER", "system-node-critical", "kubernetes.io/hostname",
    "nvidia.com/gpu", "requests.nvidia.com/gpu", "a/b", "a/b/c", "/a", "a/", "1/1", "a./b", "-/a",
    "x.kubernetes.io/y", "nvidia.com/GPU.product_1", f"{'a' * 60}.{'b' * 60}/{'c' * 63}", "cpu/x",
    f"a/{'c' * 64}", "RAY_ADDRESS", "PATH", "LD_PRELOAD", "HOME", "PYTHONPATH", "DB_PASS",
    "PASSPHRASE", "DATABASE_URL", "token", "x-api-key", "Transfer-Encoding",
    "Content-Length", "Host",
)  # fmt: skip
PATHS: Sequence[str] = (
    "/", "//", "//etc", "/etc", "/etc/", "/etc/x", "/proc", "/proc/self", "/proc/1/root", "/sys/fs",
    "/dev", "/dev/shm", "/dev/shm/", "/dev/shm/x", "/home", "/home/ray", "/home/ray/.cache", "/opt",
    "/opt/raggrpo", "/opt/raggrpo/bin", "/opt/data", "/tmp", "/tmp/x", "/usr/lib",
    "/var/run/secrets",
    "/run", "/root", "/boot", "/lib64", "/mnt", "/mnt/", "/mnt/..", "/mnt/../etc", "/mnt/./runs",
    "/mnt//runs", "/mnt/runs/../../proc", "/mnt/runs/..", "/mnt/runs/x", "/mnt/runs/x/",
    "/..", "/.",
    "/mnt/runs/a b", "/mnt/runs/é", "/mnt/runs/中", "/mnt/runs/$(HOME)", "/mnt/runs/a:b",
    "/mnt/a\nb",
    "/mnt/runs/" + "a" * 255, "/mnt/runs/" + "a" * 256, "/mnt/runs/" + "中" * 86,
    "/" + "a/" * 500, "/mnt/runs/" + "a" * 1014, "/mnt/runs/" + "b/" * 500 + "c", "/mnt/runs/...",
    "/mnt/runs/" + "b/" * 250, "/mnt/runs/..a", "/mnt/runs/a..", "/mnt/runs/-rf", "relative",
)  # fmt: skip
URLS: Sequence[str] = (
    "http://[/", "http://]/", "http://[::1]/", "http://[::1]:8000/x", "http://[fe80::1%25eth0]/",
    "http://[:::::::]/", "http://[v1.x]/", "http://\u2100/", "http://ﬀ/", "http://a\u2488com/",
    "http://℀.example/", "http://a。b/", "http://h:0/", "http://h:65536/", "http://h:8000/",
    "http://h:/",
    "http://h:99999999999/", "http://h:port/", "http:///path", "http://?x", "http://#x",
    "http:// x/",
    "http://h/\n", "http://h/a\x00b", "http://h/?q=1", "http://h/?sig=abc",
    "http://h/?X-Amz-Signature=x",
    "http://h/?max_tokens=5", "http://h/?%74oken=abc", "http://h?token=a", "http://h/#token=abc",
    "http://user:pass@h/", "http://user@h/", "http://h/a@b",
    "http://hooks.slack.com/services/T/B/x",
    "https://discord.com/api/webhooks/1/x", "http://-/", "http://./", "http://a..b/", "http://a_b/",
    "http://" + "a" * 64 + "/", "http://" + "a." * 130 + "/", "http://h/" + "a" * 2000,
    "http://h/中",
    "HTTP://h/", "http:\\\\h\\x", "http://h\\@evil/", "http://169.254.169.254/latest", "ftp://h/",
    "s3://b/k", "s3://b", "s3://", "s3:///x", "gs://b/../x", "file:///etc", "file:///mnt/runs/b",
    "file://", "file:///..", "s3://b/k?versionId=1", "s3://b::file:///etc/passwd", "s3://b/\n",
)  # fmt: skip
QUANTITIES: Sequence[str] = (
    "0", "0m", "0Gi", "0.0", "0.0000000001", "1m", "500m", "1", "64Gi", "400Gi", "1k", "1Ki",
    "1.5Gi",
    "0.5", "100000000000000000000Ti", "99999999999999999999999999999999", "9" * 30 + "Ti", "1e9",
    "99999Ti", "1024Ti", "9223372036854775807", "9223372036854775808", "0.1Ki", "16", "12345678m",
)  # fmt: skip
IMAGES: Sequence[str] = (
    "a", "A", "a/B", "registry.example.com:5000/a/b:tag", "a:", "a@", "a:b:c", "a@sha256:x",
    ":a", "/a",
    "a//b", "-a", "a_", "a b", "http://a/b", "f" * 64, "a:" + "t" * 128, "a:" + "t" * 129,
    "a\n", "a:-",
    "a" * 256, "a@sha256:" + "0" * 64, "localhost:99999/a", "[::1]:5000/a",
    "a:x@sha256:" + "0" * 64,
)  # fmt: skip
TEXTS: Sequence[str] = (
    "", "x", "中" * 100, "😀" * 100, "{passages}{prompt}{text}", "{passages!r:>1000000000}{prompt}",
    "{text:>999999999}", "{prompt.__class__}{passages}", "{0}", "{}", "{passages[0]}{prompt}",
    "postgres://user:pass@db/x", "https://h/?sig=abc", "Bearer abcdefghijklmnop", "a\r\nX-Evil: 1",
)  # fmt: skip
POOL: Sequence[str] = (*NAMES, *PATHS, *URLS, *QUANTITIES, *IMAGES, *TEXTS)
HUGE: Sequence[str] = ("x", "中", "😀", "\x01", "<", "/a", "a.", "{{", "é")


def adversarial_jobs(number: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield jobs that pass the CRD's schema; reproducible by seed."""
    random_source = random.Random(seed)
    for _ in range(number):
        yield _Generator(random_source).job()


class _Generator:
    def __init__(self, source: random.Random) -> None:
        self._random = source

    def job(self) -> dict[str, Any]:
        raw = make_raw_job({"metadata": {"name": self._job_name(), "namespace": "tenant-a",
                                      "uid": "0b7c1e5a-0000-4000-8000-5f1d5f1d5f1d"}})  # fmt: skip
        roll = self._random.random()
        self._replaced_share = 0.05 if roll < 0.8 else 0.6  # 0.6: nearly every block is invalid
        self._huge_share = 0.02 if roll < 0.9 else 0.5
        for block in dict.fromkeys(self._random.choices(BLOCKS, k=self._random.randint(1, 4))):
            schema = SPEC["properties"][block]
            raw["spec"][block] = self._merged(raw["spec"].get(block), schema)
        return raw

    def _job_name(self) -> str:
        return self._random.choice(
            ["small", "a", "a" * 44, "a-0", "x" * 43 + "9", "ray", "default"]
        )

    def _merged(self, valid: Any, schema: Mapping[str, Any]) -> Any:
        """Return a valid value with a few fields replaced."""
        if not isinstance(valid, dict) or self._random.random() < self._replaced_share:
            return self._value(schema)
        fields = schema["properties"]
        chosen = self._random.sample(sorted(fields), self._random.randint(1, min(4, len(fields))))
        return valid | {name: self._merged(valid.get(name), fields[name]) for name in chosen
                        if name != "false"}  # fmt: skip

    def _value(self, schema: Mapping[str, Any]) -> Any:
        if "enum" in schema:
            return self._random.choice(schema["enum"])
        if schema.get("x-kubernetes-preserve-unknown-fields"):
            return self._free_json(4)
        if schema.get("x-kubernetes-int-or-string"):
            return self._random.choice([0, 1, 2**31, -1, "Newest", "Best", "", "7", "x" * 300])
        match schema["type"]:
            case "boolean":
                return self._random.random() < 0.5
            case "integer":
                low, high = schema["minimum"], schema["maximum"]
                near = [low, high, min(high, low + 1), min(high, max(low, 8))]
                return self._random.choice([*near, self._random.randint(low, high)])
            case "number":
                return self._number(schema)
            case "string":
                return self._text(schema)
            case "array":
                return self._items(schema)
            case _ if "properties" in schema:
                return self._object(schema)
            case _:
                return self._map(schema)

    def _free_json(self, levels: int) -> Any:
        """Return arbitrary JSON: texts, numbers, nested lists and maps, some beyond all limits."""
        roll = self._random.random()
        if roll < self._huge_share / 4:
            return {"deep": json.loads("[" * 60 + "]" * 60), "many": [0] * 3000}
        if roll < 0.5 or not levels:
            return self._free_text(2000)
        if roll < 0.6:
            return self._random.choice([None, True, 0, -1.5, 10**30, 1e300])
        inner = [self._free_json(levels - 1) for _ in range(self._random.randint(0, 3))]
        return inner if roll < 0.8 else {self._free_text(64) or "k": each for each in inner}

    def _number(self, schema: Mapping[str, Any]) -> float:
        low, high = float(schema["minimum"]), float(schema["maximum"])
        value = self._random.choice([low, high, self._random.uniform(low, high), (low + high) / 2])
        return high if value == low and schema.get("exclusiveMinimum") else value

    def _items(self, schema: Mapping[str, Any]) -> list[Any]:
        low, high = schema.get("minItems", 0), schema["maxItems"]
        is_huge = self._random.random() < self._huge_share
        number = high if is_huge else self._random.randint(low, min(high, max(low, 3)))
        items = [self._value(schema["items"]) for _ in range(number)]
        for key in schema.get("x-kubernetes-list-map-keys", []):  # the schema requires unique names
            items = list({item[key]: item for item in items}.values())
        return items

    def _object(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        required, share = schema.get("required", []), self._random.random()
        return {
            name: self._value(field)
            for name, field in schema["properties"].items()
            if name != "false" and (name in required or self._random.random() < share)
        }

    def _map(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        number = self._random.choice([0, 1, 2, schema["maxProperties"]])
        keys = {self._free_text(64) or "k" for _ in range(number)}
        return {key: self._value(schema["additionalProperties"]) for key in keys}

    def _text(self, schema: Mapping[str, Any]) -> str:
        """Return a text that matches pattern and length, adversarial if 40 tries find one."""
        limit, pattern = schema["maxLength"], schema.get("pattern", "")
        min_length = schema.get("minLength", 0)
        for _ in range(40):
            text = self._free_text(limit)
            if min_length <= len(text) <= limit and _accepts(pattern, text):
                return text
        return next(
            text for text in (
                "", "a", "/mnt/runs/x", "Exists", "1", "a/b", "http://h/", "A", "hf://a/b", "a:b",
                "a=b",
            ) if min_length <= len(text) <= limit and _accepts(pattern, text)
        )  # fmt: skip

    def _free_text(self, limit: int) -> str:
        if self._random.random() < self._huge_share:
            unit = self._random.choice(HUGE)
            return ("/mnt/runs" * (unit == "/a") + unit * limit)[:limit]
        base = self._random.choice(POOL)
        if self._random.random() < 0.4:
            at = self._random.randint(0, len(base))
            base = base[:at] + self._random.choice(FRAGMENTS) + base[at:]
        return base[:limit] if self._random.random() < 0.5 else base


def _accepts(pattern: str, text: str) -> bool:
    """Return whether RE2 matches the pattern: unlike in Python, its `$` is the end of the text."""
    if pattern.endswith("$"):
        pattern = pattern.removesuffix("$") + r"\Z"
    return re.search(pattern, text) is not None
