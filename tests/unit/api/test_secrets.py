"""Names and values that are recognized as secrets, and similar ones that are not."""

import re
import time

import pytest

from raggrpo_api.secrets.detection import HIDDEN, has_secret
from raggrpo_api.secrets.names import SECRET_QUERY_PATTERN, has_secret_query, is_secret_name
from raggrpo_api.secrets.redaction import display_url, redacted, url_secrets

NAMES = (
    "WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "Authorization", "apiKey",
    "X-Api-Key", "access_token", "authToken", "Cookie", "DB_PASSWD", "client_secret", "token",
    "DB_PASS", "PASSPHRASE", "sig", "X-Amz-Signature", "SENTRY_DSN", "SLACK_WEBHOOK_URL", "X-Auth",
    "DB_PASS_1", "PASS_DB", "PGPASS", "MYSQLPASS", "DB_PW", "HFTOKEN", "GITHUBTOKEN", "API_TOKENS",
    "AUTH_HEADER", "dbPass", "AccountKey", "accountKey", "sshKey", "idToken", "clientSecret",
    "HF_TOKEN_2", "API_KEYS", "db.pass", "myPwd", "userToken2", "MY_TOKEN_VALUE",
    "TS_AUTHKEY", "PASS_WORD", "SSH_PASS_PHRASE", "PASSKEY", "DB_PSWD", "DATABASE_URL", "BEARER",
    "OPENAIKEY", "KUBECONFIG_DATA", "SESSION_ID", "SQLALCHEMY_DATABASE_URI", "MONGODB_URI",
    "CONNSTR",
    "AZURE_STORAGE_CONNECTION_STRING", "PG_CONN_STR", "X-Session-Id", "sessionId", "JSESSIONID",
    "PHPSESSID", "openaikey", "openAIKey", "ANTHROPICKEY", "WANDBKEY_2", "HFKEY", "KUBE_CONFIG_B64",
    "DOCKER_CONFIG_JSON", "DOCKERCONFIGJSON", "WALLET_MNEMONIC", "SEED_PHRASE", "AUTH_BEARER",
    "BEARER_VALUE", "GROQKEY", "OPENAIKEY_PROD", "SESSION_ID_2", "MYSQL_URL",
    "database.uri",
    "SESSIONKEY", "BASICAUTH", "HMAC", "XSRF", "SERVICE_ACCOUNT_JSON", "GCP_SA_JSON",
    "ID_RSA",
    "PRIVATE_PEM", "DB_CONNECTION", "JDBC_URL", "AWS_SESSION", "SESSION", "JWTS",
)  # fmt: skip
HARMLESS_NAMES = (
    "TOKENIZERS_PARALLELISM", "max_tokens", "KEYBOARD", "MONKEY", "tenant_id", "HOME", "PATH",
    "X-Client", "OMP_NUM_THREADS", "NCCL_DEBUG", "BYPASS_CACHE", "PASSES", "AUTHOR", "AUTH_MODE",
    "num_tokens", "stop_token_ids", "eos_token_id", "eosTokenId", "maxTokens", "token_type_ids",
    "monkey", "keyboard", "KEYWORDS", "compass", "bypass", "author", "pass_at_k", "passThrough",
    "tokenizer", "numKeywords", "max_new_tokens", "min_tokens", "signal", "DESIGN", "patience",
    "SESSION_IDLE_SECONDS", "sessions", "KUBECONFIG", "DATABASE", "database_name", "REDIS_HOST",
    "VECTOR_DB_URL", "turkey", "donkey", "hockey", "whiskey", "hotkey", "conn_strategy", "URL",
    "connection_timeout", "DOCKER_CONFIG", "MODEL_URI", "RETRIEVER_URL", "message_id", "user_id",
    "SESSION_TIMEOUT", "CA_PEM", "LOGIN", "AUTHOR_URL", "SERVICE_ACCOUNT", "num_sessions",
    "VISA_JSON",
    "HMAC_ALGORITHM",
)  # fmt: skip


@pytest.mark.row("E11")
@pytest.mark.parametrize("name", NAMES)
def test_secret_names_are_recognized(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", HARMLESS_NAMES)
def test_ordinary_names_are_not_treated_as_secret(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.row("E11")
@pytest.mark.parametrize("name", [*NAMES, *HARMLESS_NAMES])
def test_url_query_names_follow_same_secret_rule_as_variable_names(name: str) -> None:
    expected = is_secret_name(name)
    for url in (f"http://h/?{name}=x", f"http://h/?a=b&{name}=x", f"http://h/#{name}=x"):
        assert has_secret_query(url) is expected, url
        assert (re.search(SECRET_QUERY_PATTERN, url) is not None) is expected, url


SECRETS = (
    "postgres://me:word@db/x", "https://ghp@git.example.com/x", "amqp://:word@mq",
    "Bearer abcdefgh1234",
    "https://x.example.com/b?sv=1&sig=abc", "https://b.example.com/o?X-Amz-Signature=abc&a=b",
    "http://h/?%74oken=abc", "http://h/#access_token=abc", "hf_" + "a" * 34, "AKIA" + "A" * 16,
    "-----BEGIN OPENSSH PRIVATE KEY-----\nabc", "https://hooks.slack.com/services/T0/B0/x",
    "https://discord.com/api/webhooks/1/x",
    "postgres://u:p/w@h/db", "postgresql+asyncpg://u:p?w@h/db", "redis://:p#w@h",
    "git+ssh://0123456789abcdef0123@h/x", "https://discord.com/api/v10/webhooks/1/x",
    "https://outlook.office.com/webhook/x", "https://chat.example.com/hooks/" + "a1" * 13,
    "https://f.example.com/api?code=abc", "https://f.example.com/api?accountKey=abc",
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=abc==", "Server=h;Password=abc;",
    "host=h password=abc", "Server=h;Pwd=abc", "npm_" + "a" * 36, "sk_live_" + "a" * 24,
    "rk_live_" + "a" * 24, "pypi-" + "A" * 30, "SG." + "a" * 22 + ".x", "dapi" + "0f" * 16,
    "bearer  abcdefgh1234", "Token " + "0f" * 20, "eyJ" + "a" * 30 + ".eyJx",
    "x-eyJ" + "a" * 30 + ".eyJ",
    "alice:hunter2@proxy:3128", "--password=x", "-Dspring.datasource.password=x", "--api-key=x",
    "curl -H Authorization:abc", "nvapi-" + "a" * 20, "hvs." + "a" * 20, "pcsk_" + "a" * 20,
    "tvly-" + "a" * 20, "tskey-auth-x",
)  # fmt: skip


@pytest.mark.row("E11")
@pytest.mark.parametrize("value", SECRETS)
def test_secret_values_are_recognized(value: str) -> None:
    assert has_secret(value)


@pytest.mark.parametrize(
    "value",
    ["", "plain", "http://h:8000/x", "http://h/?max_tokens=5", "http://h/?token=", "ssh://git@h/x",
     "a:b@c", "http://h/users/@me", "file:///mnt/x", "key=abc", "http://h:8000/users/@me",
     "http://h/?country_code=de", "http://h/hooks/list", "token efficiency", "Basic English",
     "the password is required", "SG.UTF-8", "postgres://h/db"],
)  # fmt: skip
def test_ordinary_values_are_not_treated_as_secret(value: str) -> None:
    assert not has_secret(value)


UNITS = ("?", "?key_", "://:", "eyJ", "eyJaaaaaaaa-", "_key", "&secret", "https://a", "-",
         "postgres://:", "redis://a:b", " pwd  ", "://a/hooks/", " eyJaaaaaaaa", "Key", "pass",
         "-----BEGIN A", " a=", "a: ", "%25", "[", "{\"a\":", "/hooks", "QUJD ", "AAA=== ",
         "ssh-a ", "-----BEGIN CERTIFICATE-----", "data:a/b;base64,")  # fmt: skip


@pytest.mark.row("E11")
@pytest.mark.parametrize("unit", UNITS)
def test_secret_patterns_take_linear_time(unit: str) -> None:
    def seconds(length: int) -> float:
        value, durations = "http://h/?" + unit * (length // len(unit)), []
        for _ in range(5):
            start = time.process_time()  # excludes other processes
            assert not has_secret(value)
            durations.append(time.process_time() - start)
        return min(durations)

    assert seconds(32_000) < 8 * seconds(8_000)  # four times the length; a square takes 16 times


@pytest.mark.parametrize("unit", ["a", "a."])
def test_display_of_long_text_takes_linear_time(unit: str) -> None:
    def seconds(length: int) -> float:
        start = time.process_time()
        display_url(unit * (length // len(unit)))
        return time.process_time() - start

    assert min(seconds(32_000) for _ in range(3)) < 8 * min(seconds(8_000) for _ in range(3))


def test_secret_query_pattern_agrees_with_python_predicate() -> None:
    urls = ["http://h/?key=a", "http://h/?a=b&x_token=1", "http://h/?keys=1", "http://h/?db_pass=x",
            "http://h/?pass_x=1", "http://h/?token=", "http://h/?a?sig=b", "http://h/?code=x",
            "http://h/?zip_code=x", "http://h/;jwt=1"]  # fmt: skip
    for url in urls:
        assert has_secret_query(url) is (re.search(SECRET_QUERY_PATTERN, url) is not None), url


def test_secrets_are_hidden_at_any_json_depth() -> None:
    given = {
        "filters": [{"clientSecret": {"a": 1}, "top": 3}, "hf_" + "a" * 30, None, True],
        "url": "http://h/x?tenant=1 and more",
        "token": "",
        "postgres://u:p/w@h": 1,
    }
    assert redacted(given) == {
        "filters": [{"clientSecret": HIDDEN, "top": 3}, HIDDEN, None, True],
        "url": "http://h/x and more",
        "token": "",
        "postgres://(hidden)": 1,
    }


RANDOM = "q7Zt2Lk9Xw4Vb8Nc1Rm5Hj3P"


@pytest.mark.row("E11")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("http://h:1/x?key=abc#d", "http://h:1/x"),
        ("http://h/x#token=abc", "http://h/x"),
        ("see http://h/a?key=abc now", "see http://h/a now"),
        ("http://h/it's?sid=abc", "http://h/it's"),
        ("http://h/s?f='a'&sid=abc", "http://h/s"),
        ("http://h/s?f=<a>&sid=abc", "http://h/s"),
        ("https://ada:horse@h/x", "https://h/x"),
        ("https://h/hooks/SECRET", "https://h/hooks/(hidden)"),
        ("https://h/hooks/a/SECRET/run?x=1", "https://h/hooks/(hidden)/(hidden)/(hidden)"),
        ("https://h/%68ooks/SECRET", "https://h/%68ooks/(hidden)"),
        ("https://hooks.slack.com/services/T/B/x", f"https://hooks.slack.com{'/(hidden)' * 4}"),
        (f"https://h/score/{RANDOM}/x", "https://h/score/(hidden)/x"),
        (f"to https://h/{RANDOM} and http://k/?a=b", "to https://h/(hidden) and http://k/"),
        ("https://api.telegram.org/bot12:x/send", "https://(hidden)"),
        ("postgres://ada:ho/rse@db", "postgres://(hidden)"),
        ("http://kb:8000/v1/chat/completions", "http://kb:8000/v1/chat/completions"),
        ("http://[::1]:8000/{question}", "http://[::1]:8000/{question}"),
    ],
)
def test_display_url_hides_credentials_queries_and_secret_parts(text: str, shown: str) -> None:
    assert display_url(text) == shown


def test_pairs_with_secret_names_are_hidden() -> None:
    pair = {"name": "Authorization", "value": "x"}
    assert redacted([pair]) == [pair | {"value": HIDDEN}]


def test_url_secrets_are_those_parts_that_are_hidden() -> None:
    url = f"http://h/hooks/list/SECRET?tenant=acme&api_key=horse&a={RANDOM}"
    assert list(url_secrets(url)) == ["SECRET", "horse", RANDOM]
