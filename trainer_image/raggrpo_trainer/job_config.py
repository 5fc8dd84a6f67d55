"""The configuration and secret headers, read from the environment by driver and preflight.

Must import neither Ray nor torch: preflight has to start fast.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from raggrpo_api import names
from raggrpo_api.data_files import is_data_file
from raggrpo_api.fields.base import SecretKeyRef
from raggrpo_api.fields.http_access import bearer
from raggrpo_api.spec.retrieval import Header, RetrievalEndpoint, RetrievalSpec
from raggrpo_api.spec.reward import RewardSpec
from raggrpo_api.trainer.config import TrainerConfig, schema_digest
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.sealed_config import BrokenSeal, open_sealed

from .errors import TrainerError


def read_config(env: Mapping[str, str]) -> TrainerConfig:
    """Return the configuration from the environment.

    Raises TrainerError CONFIG_ERROR if the configuration is invalid, was altered, or has another
    schema.
    """
    try:
        config = TrainerConfig.model_validate_json(open_sealed(env))
    except BrokenSeal as error:
        raise TrainerError(ExitCode.CONFIG_ERROR, str(error)) from error
    except ValidationError as error:
        # Omit the values: the message is logged, and the query of a URL may contain a key.
        errors = error.errors(include_url=False, include_input=False, include_context=False)
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in errors)
        raise TrainerError(
            ExitCode.CONFIG_ERROR, f"{names.ENV_CONFIG} is invalid: {problems}"
        ) from None
    if config.schema_digest != schema_digest():
        raise TrainerError(
            ExitCode.CONFIG_ERROR,
            f"the configuration has schema {config.schema_digest}, but this trainer supports "
            f"{schema_digest()}; use a trainer image of the operator's version",
        )
    return _with_data_files(config)


def _with_data_files(config: TrainerConfig) -> TrainerConfig:
    """Return the configuration with the data files of each folder instead of the folder."""
    data = config.data
    files = {
        "train_files": _data_files(data.train_files),
        "validation_files": _data_files(data.validation_files),
    }
    return config.model_copy(update={"data": data.model_copy(update=files)})


def _data_files(paths: Sequence[str]) -> list[str]:
    """Return files in order, those of a folder sorted; an empty folder stays, as an error."""
    expanded: list[str] = []
    for path in paths:
        folder = Path(path)
        inside = [str(file) for file in sorted(folder.rglob("*")) if _is_data_file(file, folder)]
        expanded += inside or [path]
    return expanded


def _is_data_file(file: Path, folder: Path) -> bool:
    return is_data_file(file.relative_to(folder)) and file.is_file()


def endpoint_headers(spec: RetrievalSpec, env: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return each endpoint's headers by endpoint name, with secrets from the environment.

    Managed retrievers also get the run's token. Raises TrainerError CONFIG_ERROR if an environment
    variable is not set.
    """
    return {each.name: _endpoint_values(each, env) for each in spec.endpoints}


def judge_headers(spec: RewardSpec, env: Mapping[str, str]) -> dict[int, dict[str, str]]:
    """Return each judge's headers by the index of its reward term; see `endpoint_headers`."""
    return {index: _values(judge.headers, env) for index, judge in spec.judges}


def _endpoint_values(endpoint: RetrievalEndpoint, env: Mapping[str, str]) -> dict[str, str]:
    values = _values(endpoint.headers, env)
    token = env.get(names.ENV_RETRIEVER_TOKEN, "")
    if endpoint.managed is None or not token:
        return values
    others = {name: value for name, value in values.items() if name.lower() != "authorization"}
    return others | {"Authorization": bearer(token)}


def _values(headers: Sequence[Header], env: Mapping[str, str]) -> dict[str, str]:
    return {header.name: _header_value(header, env) for header in headers}


def _header_value(header: Header, env: Mapping[str, str]) -> str:
    if header.secret_key_ref is None:
        return header.value
    return secret_value(header.secret_key_ref, env, f"header {header.name}")


def secret_value(ref: SecretKeyRef, env: Mapping[str, str], user: str) -> str:
    """Return the value of a Secret key that `user`, a field, refers to.

    Raises TrainerError CONFIG_ERROR if its environment variable is not set.
    """
    name = names.secret_env(ref.name, ref.key)
    if name not in env:
        raise TrainerError(
            ExitCode.CONFIG_ERROR,
            f"{user}: the environment variable {name} is not set; for a local run, "
            "export it before `raggrpo run`",
        )
    return env[name]
