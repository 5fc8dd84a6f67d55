"""`spec.rollout.agent`: an application that calls the policy through an OpenAI-compatible API."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from raggrpo_api.fields.addresses import HttpUrl
from raggrpo_api.fields.base import ApiModel, Cpu, Memory, OptionalPath, SecretKeyRef
from raggrpo_api.fields.change_class import MODEL, OPERATIONAL, OPTIMIZATION
from raggrpo_api.fields.json_values import JsonPath, JsonTemplate
from raggrpo_api.fields.kubernetes_names import (
    Image,
    NamespaceName,
    PodSelector,
)

from .resources import EnvVar
from .reward import PythonFunction

PARSER: Final = "^([A-Za-z0-9_.-]+)?$"
MODEL_NAME: Final = "^[!-~]+$"
_SEGMENT: Final = "[A-Za-z0-9_~-][A-Za-z0-9._~-]*"
URL_PATH: Final = f"^/({_SEGMENT}(/{_SEGMENT})*/?)?$"
OPTIONAL_URL_PATH: Final = f"^(/({_SEGMENT}(/{_SEGMENT})*/?)?)?$"

ParserName = Annotated[str, StringConstraints(pattern=PARSER, max_length=64)]
"""Name of a parser of vLLM, or ""."""
ModelName = Annotated[str, StringConstraints(pattern=MODEL_NAME, max_length=253)]
"""Model name in a request; `*` stands for any characters."""
Word = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$", max_length=2048)]
"""Word of a command line."""
UrlPath = Annotated[str, StringConstraints(pattern=URL_PATH, max_length=256)]
OptionalUrlPath = Annotated[str, StringConstraints(pattern=OPTIONAL_URL_PATH, max_length=256)]


class AgentType(StrEnum):
    """Where the application runs."""

    PYTHON = "Python"
    """In processes of the job."""
    HTTP = "Http"
    """An existing service."""
    CONTAINER = "Container"
    """A service that the operator runs for the job; in local runs, its command."""


class Identification(StrEnum):
    """How the gateway recognizes the sample that a call belongs to."""

    SLOT = "Slot"
    """By the API key in the environment of the process, which runs one sample at a time."""
    TRACE = "Trace"
    """By the trace id that the application passes on in the header `traceparent`."""
    REQUEST = "Request"
    """By the API key in the request, {apiKey}, which the application uses for its calls."""


class AgentFailurePolicy(StrEnum):
    """Effect of an application that fails on its sample."""

    ZERO_REWARD = "ZeroReward"
    """Train the calls that it made with reward 0."""
    DROP_SAMPLE = "DropSample"
    """Exclude the sample from its group's baseline and from the loss."""


class AgentContainer(ApiModel):
    """A service in pods without the job's volumes, which run as user 1000 with a read-only root."""

    image: Annotated[Image, StringConstraints(min_length=1)]
    """Image of the application."""
    command: Annotated[list[Word], Field(max_length=32)] = []
    """Command without expansion of variables; empty: that of the image. Required in local runs."""
    args: Annotated[list[Word], Field(max_length=32)] = []
    """Arguments of the command; empty: those of the image."""
    port: Annotated[int, Field(ge=1024, le=65_535)] = 8000
    """Port on which the application listens."""
    path: UrlPath = "/"
    """Path to which requests are posted."""
    health_path: OptionalUrlPath = ""
    """Path that returns status 200 once the application is ready; empty: the port is open."""
    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of pods; requests are distributed over them."""
    cpu: Cpu = ""
    """CPUs per pod; empty: computed."""
    memory: Memory = ""
    """Memory per pod; empty: 1Gi."""
    env: Annotated[list[EnvVar], Field(max_length=32)] = []
    """Environment variables, in addition to OPENAI_BASE_URL, OPENAI_API_BASE and OPENAI_API_KEY."""
    egress: Annotated[list[HttpUrl], Field(max_length=8)] = []
    """URLs of servers that the pods may call, in addition to the gateway."""


class GatewayClient(ApiModel):
    """Pods that may call the gateway."""

    pod_selector: PodSelector
    """Labels of the pods, such as `app=support,tier=web`."""
    namespace: NamespaceName
    """Namespace of the pods."""


class ForwardedModels(ApiModel):
    """Models that are not trained, such as judges and embedding models, and their endpoint."""

    models: Annotated[list[ModelName], Field(min_length=1, max_length=16), MODEL]
    """Model names in calls; `*` stands for any characters. The most specific name applies."""
    url: Annotated[HttpUrl, Field(min_length=1), OPERATIONAL]
    """Base URL of an OpenAI-compatible API, such as http://judge:8000/v1."""
    api_key_secret: Annotated[SecretKeyRef | None, OPERATIONAL] = None
    """Secret key that contains the API key of the endpoint; absent: none."""


class AgentSpec(ApiModel):
    """An unmodified application whose calls of the policy are recorded and trained."""

    type: Annotated[AgentType, MODEL] = AgentType.PYTHON
    """Where the application runs."""
    python: Annotated[PythonFunction, MODEL] = ""
    """Python: `package.module:function`, called with the request, returns the result; its code is
    that of reward.codeFrom or of the image."""
    interpreter: Annotated[OptionalPath, OPERATIONAL] = ""
    """Python: interpreter of the processes, such as that of a virtual environment, for applications
    whose packages conflict with the trainer's; empty: the trainer's."""
    url: Annotated[HttpUrl, OPERATIONAL] = ""
    """Http: URL to which requests are posted."""
    allow_from: Annotated[GatewayClient | None, OPERATIONAL] = None
    """Http: pods of the application, which may call the gateway; required in a cluster."""
    container: Annotated[AgentContainer | None, OPERATIONAL] = None
    """Container: image, command and environment of the application."""
    identify: Annotated[Identification, OPERATIONAL] = Identification.SLOT
    """How calls are assigned to samples: Slot for type Python, else Trace or Request."""
    request: Annotated[JsonTemplate, MODEL] = {"question": "{question}"}
    """Request, any JSON, with {question}, {prompt}, {context}, {message_id}, columns and, if calls
    are identified by Request, {baseUrl} and {apiKey}."""
    not_secret: Annotated[bool, OPERATIONAL] = False
    """Accept values in request, and in url and forward except for known formats of secrets, that
    look like secrets but are not."""
    answer: Annotated[JsonPath, MODEL] = ""
    """JSON path of the answer in the result; empty: the result if it is a text, else `answer`."""
    passages: Annotated[JsonPath, MODEL] = ""
    """JSON path of the retrieved passages in the result, for rewards; empty: none."""
    reward: Annotated[JsonPath, MODEL] = ""
    """JSON path of a number in the result that replaces reward.functions; empty: none."""
    policy_models: Annotated[list[ModelName], Field(min_length=1, max_length=16), MODEL] = ["*"]
    """Model names in calls that mean the policy; `*` stands for any characters."""
    forward: Annotated[list[ForwardedModels], Field(max_length=8), OPERATIONAL] = []
    """Models whose calls are passed on to an endpoint instead of the policy."""
    max_turns: Annotated[int, Field(ge=1, le=1024), OPTIMIZATION] = 8
    """Maximum calls of the policy per sample."""
    timeout_seconds: Annotated[float, Field(gt=0.0, le=86_400.0), OPERATIONAL] = 300.0
    """Timeout of the application for one sample in seconds; waits for engines do not count."""
    on_error: Annotated[AgentFailurePolicy, OPTIMIZATION] = AgentFailurePolicy.ZERO_REWARD
    """Effect of an application that fails on its sample."""
    processes: Annotated[int, Field(ge=0, le=1024), OPERATIONAL] = 0
    """Python: number of processes, and of samples at the same time; 0: computed."""
    process_memory: Annotated[Memory, OPERATIONAL] = ""
    """Python: memory per process, reserved in the pod of the driver; empty: 256Mi."""
    tool_parser: Annotated[ParserName, OPTIMIZATION] = ""
    """Parser of vLLM for tool calls, such as hermes; empty: by the chat template."""
    reasoning_parser: Annotated[ParserName, OPTIMIZATION] = ""
    """Parser of vLLM for reasoning, such as qwen3; empty: none."""

    @property
    def is_service(self) -> bool:
        """Whether the application runs outside the processes of the job, as a service."""
        return self.type is not AgentType.PYTHON
