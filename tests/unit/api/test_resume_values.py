from raggrpo_api.job import JobSpec
from raggrpo_api.resume import resume_values
from raggrpo_operator.core.spec.resolve import resolve, trainer_config
from support.builders.jobs import a_job

DEPENDS_ON = """
model.path
data.trainFiles data.trainBatchSize data.maxPromptLength data.maxResponseLength
data.maxSamples data.allowTruncation data.columns
algorithm.groupSize algorithm.clipRatioLow algorithm.clipRatioHigh algorithm.klCoefficient
algorithm.normalizeByStd algorithm.lossAggregation algorithm.importanceCap
rollout.n rollout.temperature rollout.topP
training.seed training.learningRate training.warmupSteps training.weightDecay
training.maxGradNorm training.miniBatchPrompts training.offPolicySteps
retrieval.mode retrieval.promptTemplate retrieval.passageTemplate retrieval.shufflePassages
retrieval.maxPassageTokens retrieval.maxTurns retrieval.actorOutput retrieval.onFailure
retrieval.endpoints reward.functions
"""
ENDPOINT = {"name": "kb", "url": "http://kb:8000/retrieve", "topK": 5}
JOB = {"retrieval.mode": "Prompt", "retrieval.endpoints": [ENDPOINT]}


def a_spec() -> JobSpec:
    return resolve(a_job(JOB)).spec


def test_exactly_what_a_result_depends_on_is_listed_by_its_path_in_the_job() -> None:
    values = resume_values(a_spec())

    assert sorted(values) == sorted(DEPENDS_ON.split())
    assert values["data.trainFiles"] == ["/mnt/runs/train.jsonl"]
    assert values["retrieval.endpoints"] == [
        {"name": "kb", "role": "Retriever", "protocol": "SearchR1", "topK": 5}
        | {"scoreThreshold": 0.95}
    ]
    assert values["reward.functions"] == [{"name": "ExactMatch", "weight": 1.0, "python": ""}]


def test_the_trainer_sees_the_same_values_as_the_operator() -> None:
    job = a_job(JOB)
    config = trainer_config(job, resolve(job), number=1)
    assert resume_values(config) == resume_values(a_spec())


def test_a_checkpoint_from_before_a_field_fits_until_the_field_is_used() -> None:
    before = resume_values(a_spec())
    assert before["data.columns"] == {
        "prompt": "prompt",
        "answer": "answer",
        "context": "context",
        "query": "",
    }

    changes = {
        "data.systemPrompt": "Be brief.",
        "data.chatTemplate": "{{ messages }}",
        "data.tools": "[]",
        "data.columns.tools": "tools",
        "reward.answerMarker": "####",
    }
    for path, value in changes.items():
        changed = resume_values(resolve(a_job(JOB | {path: value})).spec)
        [place] = [place for place in changed if changed[place] != before.get(place)]
        assert path.startswith(place)
