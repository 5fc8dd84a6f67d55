"""CEL rules that compare fields of different blocks of `spec`."""

from raggrpo_api.fields.kubernetes_names import BARE_DIGEST
from raggrpo_api.spec.reward import ANSWER_REWARDS

from .rule import CelRule, either, given, if_given, is_one_of, matches

_STEPS = f"{either('training.totalSteps', '0')} > 0"
_EPOCHS = f"{either('training.epochs', '0')} > 0"
_ON_CPU = is_one_of("resources.device", "CPU")
_APART = is_one_of("resources.placement", "Disaggregated")
_PADDED = is_one_of("training.rowLayout", "Padded")
_RAG_SCORE = (
    f"({given('reward.functions')} && self.reward.functions.exists(f, f.name == 'RagScore'))"
)
_NODES = either("resources.nodes", "1")
_RANKS = (
    f"({_ON_CPU} ? {either('resources.ranks', '1')} : {either('resources.gpusPerNode', '1')})"
    f" * {_NODES}"
)
_MINI = either("training.miniBatchPrompts", "0")
_PROMPTS = f"({_MINI} > 0 ? {_MINI} : self.data.trainBatchSize)"
_READS_ANSWER = (
    f"(!({given('reward.functions')}) || "
    f"self.reward.functions.exists(f, f.name in {list(map(str, ANSWER_REWARDS))}))"
)
_HOLDS = (
    "(self.checkpoint.path + '/').startsWith("
    "{v}.mountPath.endsWith('/') ? {v}.mountPath : {v}.mountPath + '/')"
)
_TEMPLATE_MODES = is_one_of("retrieval.mode", "Prompt")


def _one_endpoint(role: str) -> str:
    return (
        f"({given('retrieval.endpoints')} && "
        f"self.retrieval.endpoints.exists_one(e, has(e.role) && e.role == '{role}'))"
    )


def _any_asked(*switches: str) -> str:
    return " || ".join(either(switch, "false") for switch in switches)


_TARGETS = (
    CelRule(
        f"{_STEPS} || {_EPOCHS}",
        "neither totalSteps nor epochs: give training.totalSteps or training.epochs",
        ".training",
    ),
    CelRule(
        "!has(self.checkpoint.everySteps) || self.checkpoint.everySteps > 0 || "
        f"{either('recovery.maxRestarts', '1')} == 0",
        "checkpoint.everySteps 0 saves only at the end: set recovery.maxRestarts 0, or save",
        ".checkpoint.everySteps",
    ),
)
_BATCHES = (
    CelRule(
        if_given(
            ("rollout.n", "algorithm.groupSize"), "self.rollout.n == self.algorithm.groupSize"
        ),
        "rollout.n and algorithm.groupSize differ: give one of the two, or make them equal",
        ".rollout.n",
    ),
    CelRule(
        if_given(
            ("data.trainBatchSize", "training.miniBatchPrompts"),
            "self.training.miniBatchPrompts == 0 || "
            "self.data.trainBatchSize % self.training.miniBatchPrompts == 0",
        ),
        "training.miniBatchPrompts must divide data.trainBatchSize; 0: one update per batch",
        ".training.miniBatchPrompts",
    ),
    CelRule(
        f"!({given('data.trainBatchSize')} || {_MINI} > 0) || {_PADDED} || {_PROMPTS} >= {_RANKS}",
        "fewer prompts per update than ranks: raise data.trainBatchSize (or "
        "training.miniBatchPrompts), or lower resources.nodes or gpusPerNode",
        ".data.trainBatchSize",
    ),
    CelRule(
        if_given(
            ("data.trainBatchSize", "data.maxSamples"),
            "self.data.maxSamples == 0 || self.data.maxSamples >= self.data.trainBatchSize",
        ),
        "data.trainBatchSize exceeds data.maxSamples: lower it, or use more samples",
        ".data.trainBatchSize",
    ),
)
_LENGTHS = (
    CelRule(
        if_given(
            ("data.maxPromptLength", "data.maxResponseLength", "rollout.maxNumBatchedTokens"),
            "self.rollout.maxNumBatchedTokens == 0 || self.rollout.maxNumBatchedTokens >= "
            "self.data.maxPromptLength + self.data.maxResponseLength",
        ),
        "rollout.maxNumBatchedTokens must be at least maxPromptLength + maxResponseLength; "
        "0: sized",
        ".rollout.maxNumBatchedTokens",
    ),
    CelRule(
        if_given(
            ("data.maxPromptLength", "data.maxResponseLength", "training.tokensPerMicroBatch"),
            "self.training.tokensPerMicroBatch >= "
            "self.data.maxPromptLength + self.data.maxResponseLength",
        ),
        "training.tokensPerMicroBatch must be at least maxPromptLength + maxResponseLength",
        ".training.tokensPerMicroBatch",
    ),
    CelRule(
        if_given(
            ("data.maxPromptLength", "retrieval.maxPassageTokens", "retrieval.endpoints"),
            f"!{_TEMPLATE_MODES} || (has(self.data.allowTruncation) && self.data.allowTruncation)"
            " || self.retrieval.endpoints.all(e, !has(e.topK) || "
            "e.topK * self.retrieval.maxPassageTokens < self.data.maxPromptLength)",
        ),
        "topK × retrieval.maxPassageTokens leave no room to the question: raise "
        "data.maxPromptLength, or lower one of the two",
        ".data.maxPromptLength",
    ),
    CelRule(
        if_given(
            (
                "data.maxResponseLength",
                "retrieval.maxPassageTokens",
                "retrieval.maxTurns",
                "retrieval.endpoints",
            ),
            f"!{is_one_of('retrieval.mode', 'Search')} || "
            "self.retrieval.endpoints.all(e, !has(e.topK) || self.retrieval.maxTurns * e.topK * "
            "self.retrieval.maxPassageTokens < self.data.maxResponseLength)",
        ),
        "maxTurns × topK × retrieval.maxPassageTokens leave no room to the answer: raise "
        "data.maxResponseLength, or lower one of the three",
        ".data.maxResponseLength",
    ),
)
_PROCESSORS = (
    CelRule(
        f"!({given('training.offPolicySteps')}) || self.training.offPolicySteps == 0 || {_APART}",
        "training.offPolicySteps 1 needs resources.placement Disaggregated",
        ".training.offPolicySteps",
    ),
    CelRule(
        f"!({given('rollout.gpuMemoryUtilization')}) || {_ON_CPU} || "
        f"double(self.rollout.gpuMemoryUtilization) <= ({_APART} ? 0.9 : 0.7)",
        "rollout.gpuMemoryUtilization leaves too little to the trainer: 0.7 or less when "
        "Colocated, 0.9 or less when Disaggregated",
        ".rollout.gpuMemoryUtilization",
    ),
    CelRule(
        f"!({given('rollout.tensorParallelSize', 'resources.gpusPerNode')}) || {_ON_CPU} || "
        f"{_APART} || self.resources.gpusPerNode % self.rollout.tensorParallelSize == 0",
        "rollout.tensorParallelSize must divide resources.gpusPerNode",
        ".rollout.tensorParallelSize",
    ),
    CelRule(
        f"!({given('rollout.tensorParallelSize', 'resources.rolloutGpus')}) || {_ON_CPU} || "
        f"!{_APART} || self.resources.rolloutGpus % self.rollout.tensorParallelSize == 0",
        "rollout.tensorParallelSize must divide resources.rolloutGpus when Disaggregated",
        ".rollout.tensorParallelSize",
    ),
    CelRule(
        f"!({given('rollout.tensorParallelSize')}) || !{_ON_CPU} || "
        "self.rollout.tensorParallelSize == 1",
        "rollout.tensorParallelSize must be 1 when resources.device is CPU",
        ".rollout.tensorParallelSize",
    ),
    CelRule(
        f"!{is_one_of('model.attention', 'Flash', 'Eager')} || {_PADDED}",
        "model.attention Flash and Eager need training.rowLayout Padded; Auto takes the best",
        ".model.attention",
    ),
    CelRule(
        f"!{is_one_of('model.attention', 'Flash')} || "
        f"!({_ON_CPU} || {is_one_of('training.precision', 'FP32')})",
        "model.attention Flash needs resources.device GPU and training.precision BF16 or FP16; "
        "Auto takes the best",
        ".model.attention",
    ),
)
_FILES = (
    CelRule(
        f"!({given('volumes')}) || size(self.volumes) == 0 || "
        f"self.volumes.exists(v, {_HOLDS.format(v='v')})",
        "checkpoint.path must lie below the mountPath of a volume: pods lose what lies elsewhere",
        ".checkpoint.path",
    ),
    CelRule(
        f"!({given('volumes')}) || !self.volumes.exists(v, has(v.readOnly) && v.readOnly && "
        f"{_HOLDS.format(v='v')} && !self.volumes.exists(w, {_HOLDS.format(v='w')} && "
        "size(w.mountPath) > size(v.mountPath)))",
        "checkpoint.path lies on a read-only volume: use another volume, or readOnly: false",
        ".checkpoint.path",
    ),
    CelRule(
        f"!({_any_asked('validation.beforeTraining', 'validation.afterTraining')} || "
        f"{either('validation.everySteps', '0')} > 0) || "
        f"({given('data.validationFiles')} && size(self.data.validationFiles) > 0)",
        "validation is on: give data.validationFiles, or switch it off",
        ".data.validationFiles",
    ),
    CelRule(
        f"!({given('data.columns.answer')}) || size(self.data.columns.answer) > 0 || "
        f"!{_READS_ANSWER}",
        "data.columns.answer: name the column that ExactMatch, F1 and Contains read",
        ".data.columns.answer",
    ),
    CelRule(
        f"!({given('data.columns.context')}) || size(self.data.columns.context) > 0 || "
        f"!{_RAG_SCORE}",
        "data.columns.context: name the column that RagScore reads",
        ".data.columns.context",
    ),
)
_IMAGE = (
    CelRule(
        f"!has(self.image) || !{matches('self.image', BARE_DIGEST)}",
        "image: a digest alone names no image, give name@sha256:digest",
        ".image",
    ),
    CelRule(
        "!has(self.imagePullSecrets) || "
        "self.imagePullSecrets.all(s, self.imagePullSecrets.exists_one(t, t == s))",
        "imagePullSecrets: a name is given twice, give each once",
        ".imagePullSecrets",
    ),
)
_REWARDS = (
    CelRule(
        f"!{_RAG_SCORE} || {is_one_of('retrieval.mode', 'Reward')}",
        "reward RagScore calls endpoints after generation: set retrieval.mode Reward",
        ".retrieval",
    ),
    CelRule(
        f"!{_RAG_SCORE} || ({_one_endpoint('Actor')} && {_one_endpoint('Reference')})",
        "reward RagScore needs in retrieval.endpoints one endpoint with role Actor and one with "
        "role Reference, with protocol RagChat or Http",
        ".retrieval",
    ),
    CelRule(
        f"!({given('retrieval.actorOutput.fields')}) || !{_RAG_SCORE} || "
        f"({given('retrieval.endpoints')} && self.retrieval.endpoints.exists(e, has(e.role) && "
        "e.role == 'Actor' && has(e.protocol) && e.protocol == 'Http')) || "
        "['user_profile', 'rewritten_query', 'history_summary'].all(f, "
        "f in self.retrieval.actorOutput.fields)",
        "reward RagScore needs user_profile, rewritten_query and history_summary in "
        "retrieval.actorOutput.fields",
        ".retrieval.actorOutput.fields",
    ),
)

ACROSS_BLOCKS: tuple[CelRule, ...] = (
    *_TARGETS,
    *_BATCHES,
    *_LENGTHS,
    *_PROCESSORS,
    *_FILES,
    *_IMAGE,
    *_REWARDS,
)
"""Rules at `spec`."""
