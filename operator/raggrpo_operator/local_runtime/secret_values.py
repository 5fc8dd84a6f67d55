"""Environment of local processes: `spec.env`, with Secret values from the user's environment."""

from collections.abc import Iterator, Mapping, Sequence

from raggrpo_api.fields.base import SecretKeyRef
from raggrpo_api.names import ENV_CA_BUNDLE, secret_env
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.resources import EnvVar
from raggrpo_operator.core.rules.base.spec_rule import values_at
from raggrpo_operator.core.spec.called_secrets import called_secrets


def missing_secrets(spec: JobSpec, environment: Mapping[str, str]) -> list[str]:
    """Return a line with a remedy for each reference whose environment variable is not set."""
    missing = [
        f"{user} refers to key {ref.key} of Secret {ref.name}: "
        f"export {secret_env(ref.name, ref.key)}=..."
        for user, ref in _references(spec)
        if secret_env(ref.name, ref.key) not in environment
    ]
    if spec.ca_bundle is not None and ENV_CA_BUNDLE not in environment:
        missing.append(f"spec.caBundle: export {ENV_CA_BUNDLE}=/path/to/ca.crt")
    return missing


def trainer_env(spec: JobSpec, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of drivers, ranks and preflight."""
    return with_variables(spec.env, environment)


def with_variables(variables: Sequence[EnvVar], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the variables of a job."""
    env = dict(environment)
    for variable in variables:
        ref = variable.secret_key_ref
        env[variable.name] = environment[secret_env(ref.name, ref.key)] if ref else variable.value
    return env


def _references(spec: JobSpec) -> Iterator[tuple[str, SecretKeyRef]]:
    for place in ("spec.env", "spec.rollout.agent.container.env"):
        for _, variable in values_at(spec, f"{place}[]"):
            if variable.secret_key_ref is not None:
                yield f"{place} {variable.name}", variable.secret_key_ref
    yield from called_secrets(spec)
