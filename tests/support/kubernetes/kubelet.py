"""Command line and environment of a container after the kubelet's expansion of `$(NAME)`.

Follows Kubernetes' third_party/forked/golang/expansion/expand.go and the API's description of
`env[].value`, `command` and `args`.
"""

from collections.abc import Mapping
from typing import Any


def expand_references(text: str, known: Mapping[str, str]) -> str:
    """Return the text with references replaced. Unknown references stay, `$$` becomes `$`."""
    result, position = "", 0
    while position < len(text):
        rest = text[position:]
        if rest.startswith("$$"):
            result, position = result + "$", position + 2
        elif rest.startswith("$(") and ")" in rest:
            name = rest[2 : rest.index(")")]
            result += known.get(name, f"$({name})")
            position += len(name) + 3
        else:
            result, position = result + rest[0], position + 1
    return result


def command_and_environment(container: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Return command line and environment; values from Secrets are not expanded."""
    env: dict[str, str] = {}
    for each in container["env"]:
        env[each["name"]] = expand_references(each["value"], env) if "value" in each else "a secret"
    return [expand_references(word, env) for word in container["command"]], env
