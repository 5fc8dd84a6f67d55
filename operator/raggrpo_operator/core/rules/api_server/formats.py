"""Rules on the format of values, which the operator checks in `core.spec.parse`."""

from raggrpo_api.fields.kubernetes_names import QUALIFIED_NAME
from raggrpo_api.spec.start_from import START_STEP
from raggrpo_operator.core.rules.base.cel import if_specified, matches
from raggrpo_operator.core.rules.base.spec_rule import ServerRule
from raggrpo_operator.core.spec.parse import MAX_NAME, NAME_RULE

_NAME = "^[a-z]([-a-z0-9]*[a-z0-9])?$"

job_name_is_short = ServerRule(
    place="",
    field="",
    cel=f"size(self.metadata.name) <= {MAX_NAME} && self.metadata.name.matches('{_NAME}')",
    message=f"metadata.name: the name is not valid → {NAME_RULE}, such as qwen-7b-grpo",
)
n_is_quoted = ServerRule(
    place="spec.rollout",
    field="",
    cel="!has(self.__false__)",
    message='rollout.n: YAML 1.1, which kubectl uses, parses an unquoted n as false → write "n": '
    "3, or specify algorithm.groupSize instead",
)
# For an integer value, the API server truncates the schema's minimum to 0.
utilization_is_not_zero = ServerRule(
    place="spec.rollout",
    field="gpuMemoryUtilization",
    cel=if_specified(("gpuMemoryUtilization",), "double(self.gpuMemoryUtilization) >= 0.05"),
    message="gpuMemoryUtilization must be at least 0.05 → increase the value; 0.6 is usual",
)
node_selector_keys_are_labels = ServerRule(
    place="spec.scheduling",
    field="nodeSelector",
    cel="!has(self.nodeSelector) || self.nodeSelector.all(k, size(k) <= 253 && "
    f"{matches('k', QUALIFIED_NAME)})",
    message="a key of nodeSelector is not valid → write a label key such as nvidia.com/gpu.product",
)
start_step_is_valid = ServerRule(
    place="spec.training.startFrom",
    field="step",
    cel=f"!has(self.step) || {matches('string(self.step)', START_STEP)}",
    message="not a valid step → specify Newest, Best or the number of a step",
)
