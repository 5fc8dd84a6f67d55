"""The endpoints of models that are not trained, with their API keys."""

from collections.abc import Mapping

from raggrpo_api.spec.agent import AgentSpec
from raggrpo_trainer.gateway.model_names import Endpoint
from raggrpo_trainer.job_config import secret_value


def forwarded_endpoints(agent: AgentSpec, env: Mapping[str, str]) -> list[Endpoint]:
    """Return the endpoints of `forward`, with API keys from the environment.

    Raises TrainerError CONFIG_ERROR if an environment variable is not set.
    """
    endpoints = []
    for index, each in enumerate(agent.forward):
        ref, place = each.api_key_secret, f"rollout.agent.forward[{index}].apiKeySecret"
        key = "" if ref is None else secret_value(ref, env, place)
        endpoints.append(Endpoint(tuple(each.models), each.url, key))
    return endpoints
