import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raggrpo_api.spec.secret_names import SECRET_QUERY_PATTERN, has_secret_query, looks_secret
from raggrpo_api.spec.secret_values import holds_secret

ROOT = Path(__file__).parents[3]


def test_the_contract_loads_neither_kopf_nor_torch() -> None:
    program = (
        "import pkgutil, importlib, sys, raggrpo_api\n"
        "for module in pkgutil.iter_modules(raggrpo_api.__path__):\n"
        "    importlib.import_module(f'raggrpo_api.{module.name}')\n"
        "heavy = {'kopf', 'torch', 'ray', 'vllm', 'kubernetes', 'raggrpo_operator'}\n"
        "print(sorted(heavy & sys.modules.keys()))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("folder", ["operator", "trainer_image", "crds", "helm"])
def test_top_level_folders_are_no_packages(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


@pytest.mark.parametrize(
    "name",
    ["WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "Authorization", "apiKey",
     "X-Api-Key", "access_token", "authToken", "Cookie", "DB_PASSWD", "client_secret", "token",
     "DB_PASS", "PASSPHRASE", "sig", "X-Amz-Signature", "SENTRY_DSN", "SLACK_WEBHOOK_URL",
     "X-Auth", "DB_PASS_1", "PASS_DB", "PGPASS", "MYSQLPASS", "DB_PW", "HFTOKEN", "GITHUBTOKEN",
     "API_TOKENS", "AUTH_HEADER", "dbPass", "AccountKey", "sshKey", "idToken", "clientSecret"],
)  # fmt: skip
def test_names_of_secrets_are_recognised(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name",
    ["TOKENIZERS_PARALLELISM", "max_tokens", "KEYBOARD", "MONKEY", "tenant_id", "HOME", "PATH",
     "X-Client", "OMP_NUM_THREADS", "NCCL_DEBUG", "BYPASS_CACHE", "PASSES", "AUTHOR", "AUTH_MODE",
     "maxTokens", "num_valid_tokens", "PASS_RATE", "compass", "keywords", "primary", "signal"],
)  # fmt: skip
def test_other_names_are_left_alone(name: str) -> None:
    assert not looks_secret(name)


SECRETS = (
    "postgres://me:word@db/x", "https://ghp@git.example.com/x", "amqp://:word@mq",
    "Bearer abcdefgh1234", "https://x.example.com/b?sv=1&sig=abc",
    "https://b.example.com/o?X-Amz-Signature=abc&a=b", "http://h/?%74oken=abc",
    "http://h/#access_token=abc", "hf_" + "a" * 34, "AKIA" + "A" * 16,
    "-----BEGIN OPENSSH PRIVATE KEY-----\nabc", "https://hooks.slack.com/services/T0/B0/x",
    "https://discord.com/api/webhooks/1/x", "https://discord.com/api/v10/webhooks/1/x",
    "postgres://u:p/w@h/db", "postgresql+psycopg://u:p#w@h/db", "redis://:p?w@h",
    "git+ssh://abcdefghij0123456789@h/x", "https://outlook.office.com/webhook/abc",
    "https://chat.example.com/hooks/abcdefghijklmnopqrstuvwxyz", "https://h/api?code=abc",
    "https://h/x?accountKey=abc", "AccountName=x;AccountKey=abc==;",
    "Server=x;User Id=u;Password=p;", "host=db user=u password=word", "npm_" + "a" * 36,
    "sk_live_" + "a" * 24, "pypi-AgEIcHlwaS5vcmcabc", "SG." + "a" * 22 + ".b", "dapi" + "0" * 32,
    "bearer  abcdefghijklm", "Token abcdefghijklmnop", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
)  # fmt: skip


@pytest.mark.parametrize("value", SECRETS)
def test_values_that_are_secrets_are_recognised(value: str) -> None:
    assert holds_secret(value)


@pytest.mark.parametrize(
    "value",
    ["", "plain", "http://h:8000/x", "http://h/?max_tokens=5", "http://h/?token=", "ssh://git@h/x",
     "a:b@c", "http://h/users/@me", "file:///mnt/x", "key=abc",
     "token classification", "redis://h:6379/0", "http://h/x?lang_code=en", "no password given"],
)  # fmt: skip
def test_other_values_are_left_alone(value: str) -> None:
    assert not holds_secret(value)


@pytest.mark.parametrize("unit", ["?", "?key_", "://:", "eyJ", "_key", "&secret", "https://a", "-"])
def test_no_value_keeps_the_operator_busy(unit: str) -> None:
    values = ["http://h/?" + unit * (2000 // len(unit))] * 16
    began = time.process_time()
    assert not any(map(holds_secret, values))
    assert time.process_time() - began < 0.2  # of this process: other programs do not count


def test_the_pattern_for_the_api_server_means_what_the_operator_does() -> None:
    urls = ["http://h/?key=a", "http://h/?a=b&x_token=1", "http://h/?keys=1", "http://h/?db_pass=x",
            "http://h/?pass_x=1", "http://h/?token=", "http://h/?a?sig=b",
            "http://h/;jwt=1", "http://h/?dbPass=x", "http://h/?maxTokens=5", "http://h/?db_pass_1=x",
            "http://h/?hftoken=a", "http://h/?a=hftoken&num_valid_tokens=3"]  # fmt: skip
    for url in urls:
        assert has_secret_query(url) is (re.search(SECRET_QUERY_PATTERN, url) is not None), url
