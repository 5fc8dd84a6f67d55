from typing import Any

import pytest

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.spec.model import Attention
from raggrpo_api.spec.training import MAX_STEPS, Precision, RowLayout
from raggrpo_api.status.job_status import Pinned
from raggrpo_api.trainer.config import TrainerConfig, schema_digest
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.spec.mitigations import Mitigation
from raggrpo_operator.core.spec.resolve import Origin, resolve, trainer_config
from support.builders.operator.jobs import KNOWN_7B, KNOWN_TINY, SAMPLES, make_job, make_sample

ENDPOINT = {"name": "kb", "url": "http://kb:8000/retrieve"}


def config_of(job: RagGrpoJob, facts: Facts | None = KNOWN_7B, **options: Any) -> TrainerConfig:
    return trainer_config(job, resolve(job, facts), number=1, facts=facts, **options)


@pytest.mark.row("A1")
@pytest.mark.parametrize(
    ("changes", "n", "n_origin", "group_origin"),
    [
        ({}, 3, Origin.PRESET, Origin.PRESET),
        ({"rollout": {"n": 5}}, 5, Origin.USER, Origin.COUPLED),
        ({"algorithm": {"groupSize": 5}}, 5, Origin.COUPLED, Origin.USER),
        ({"rollout": {"n": 5}, "algorithm": {"groupSize": 5}}, 5, Origin.USER, Origin.USER),
    ],
)
def test_group_size_and_rollout_n_are_coupled(
    changes: dict[str, Any], n: int, n_origin: Origin, group_origin: Origin
) -> None:
    resolved = resolve(make_job(changes))
    assert resolved.spec.rollout.n == n
    assert resolved.spec.algorithm.group_size == n
    assert resolved.origins["rollout.n"] is n_origin
    assert resolved.origins["algorithm.groupSize"] is group_origin


def test_user_value_takes_precedence_over_preset_and_default() -> None:
    resolved = resolve(make_job({"preset": "MemoryLimited", "data.trainBatchSize": 8}))

    assert (resolved.spec.data.train_batch_size, resolved.origins["data.trainBatchSize"]) == (
        8,
        Origin.USER,
    )
    assert (resolved.spec.data.max_prompt_length, resolved.origins["data.maxPromptLength"]) == (
        500,
        Origin.PRESET,
    )
    assert (resolved.spec.rollout.top_p, resolved.origins["rollout.topP"]) == (1.0, Origin.DEFAULT)


def test_specified_value_equal_to_default_has_origin_user() -> None:
    resolved = resolve(make_job({"preset": "Debug", "monitoring": {"mode": "Light"}}))
    assert resolved.spec.monitoring.mode == "Light"
    assert resolved.origins["monitoring.mode"] is Origin.USER
    assert resolved.spec.monitoring.debug.scoring


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_origins_cover_exactly_the_leaf_fields(path: Any) -> None:
    resolved = resolve(make_sample(path))

    def leaves(value: Any, place: str) -> list[str]:
        if isinstance(value, dict) and value:
            return [leaf for key, item in value.items() for leaf in leaves(item, f"{place}.{key}")]
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return [
                leaf
                for index, item in enumerate(value)
                for leaf in leaves(item, f"{place}[{index}]")
            ]
        return [place.removeprefix(".")]

    free_form = ("extraBody", "body", "nodeSelector", "agent.request")  # one leaf each
    leaves = {
        leaf.split(f".{name}.")[0] + f".{name}" if f".{name}." in leaf else leaf
        for leaf in leaves(resolved.spec.model_dump(by_alias=True), "")
        for name in [next((each for each in free_form if f".{each}." in leaf), "none")]
    }
    assert leaves == set(resolved.origins)


@pytest.mark.row("A34")
@pytest.mark.parametrize(
    ("changes", "place", "value"),
    [
        ({}, "rollout.maxNumBatchedTokens", 8192),
        ({"data.maxPromptLength": 9000}, "rollout.maxNumBatchedTokens", 9512),
        ({"resources": {"device": "CPU"}}, "rollout.maxNumBatchedTokens", 4096),
        ({}, "training.miniBatchPrompts", 128),
        ({}, "data.numWorkers", 8),
        ({"resources": {"device": "CPU"}}, "data.numWorkers", 2),
        ({"resources": {"cpu": "500m"}}, "data.numWorkers", 1),
        ({"data.numWorkers": 64, "resources": {"cpu": "99"}}, "data.numWorkers", 16),
        ({}, "monitoring.logDir", "/mnt/runs/checkpoints/logs"),
        ({"resources": {"device": "CPU"}}, "training.precision", "Auto"),
        (
            {"retrieval": {"mode": "Prompt", "endpoints": [ENDPOINT]}, "data.maxPromptLength": 200},
            "retrieval.maxPassageTokens",
            50,  # 200 × 0.75 / 3
        ),
        (
            {"retrieval": {"mode": "Search", "endpoints": [ENDPOINT]}},
            "retrieval.maxPassageTokens",
            64,  # 512 × 0.75 / (2 turns × 3)
        ),
    ],
)
def test_unspecified_values_are_derived_by_sizing(
    changes: dict[str, Any], place: str, value: object
) -> None:
    resolved = resolve(make_job(changes))

    block: Any = resolved.spec.model_dump(by_alias=True)
    for key in place.split("."):
        block = block[key]
    assert block == value
    assert resolved.origins[place] is Origin.SIZED


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"rollout": {"maxNumBatchedTokens": 4096}}, "rollout.maxNumBatchedTokens"),
        ({"training": {"miniBatchPrompts": 32}}, "training.miniBatchPrompts"),
        ({"monitoring": {"logDir": "/mnt/logs"}}, "monitoring.logDir"),
        ({"resources": {"device": "CPU"}, "training": {"precision": "BF16"}}, "training.precision"),
        (
            {
                "retrieval": {"mode": "Prompt", "endpoints": [ENDPOINT], "maxPassageTokens": 300},
                "data.maxPromptLength": 200,
            },
            "retrieval.maxPassageTokens",
        ),
    ],
)
def test_specified_values_are_not_replaced_by_sized_values(
    changes: dict[str, Any], place: str
) -> None:
    job = make_job(changes)
    resolved = resolve(job)

    given: Any = job.spec.model_dump(by_alias=True)
    kept: Any = resolved.spec.model_dump(by_alias=True)
    for key in place.split("."):
        given, kept = given[key], kept[key]
    assert kept == given
    assert resolved.origins[place] is Origin.USER


COSINE = {"totalSteps": 1000, "learningRateSchedule": "Cosine"}
PADDED = Facts(row_layout=RowLayout.PADDED)
TWO_EPOCHS = {"training": {"epochs": 2}}
DENSE = {
    "corpus": "/mnt/runs/c.jsonl",
    "index": "Dense",
    "embedding": {"path": "/mnt/runs/e5"},
}


@pytest.mark.parametrize(
    ("changes", "facts", "place", "value", "origin"),
    [
        ({}, None, "resources.memory", "", Origin.SIZED),
        ({"resources": {"memory": "8Gi"}}, None, "resources.memory", "8Gi", Origin.USER),
        ({}, None, "resources.shmSize", "", Origin.SIZED),
        ({"resources": {"shmSize": "8Gi"}}, None, "resources.shmSize", "8Gi", Origin.USER),
        (
            TWO_EPOCHS | {"data.trainBatchSize": 1},
            None,
            "training.totalSteps",
            0,
            Origin.DEFAULT,
        ),
        (TWO_EPOCHS, KNOWN_7B, "training.totalSteps", 156, Origin.SIZED),
        ({}, KNOWN_7B, "training.totalSteps", 1000, Origin.USER),
        (
            {"training": {"totalSteps": 5, "epochs": 2}},
            KNOWN_7B,
            "training.totalSteps",
            5,
            Origin.USER,
        ),
        ({}, KNOWN_7B, "training.decaySteps", 0, Origin.DEFAULT),
        ({"training": COSINE}, None, "training.decaySteps", 1000, Origin.SIZED),
        ({"training": COSINE | {"decaySteps": 50}}, None, "training.decaySteps", 50, Origin.USER),
        ({}, PADDED, "training.rowLayout", "Padded", Origin.SIZED),
        ({}, KNOWN_7B, "training.rowLayout", "SharedPrefix", Origin.DEFAULT),
        (
            {"training": {"totalSteps": 1, "rowLayout": "SharedPrefix"}},
            PADDED,
            "training.rowLayout",
            "SharedPrefix",
            Origin.USER,
        ),
        ({}, None, "training.precision", "BF16", Origin.PRESET),
        (
            {"preset": "Debug", "resources": {"device": "CPU"}},
            None,
            "training.precision",
            "FP32",
            Origin.PRESET,
        ),
        ({"data.numWorkers": 8}, None, "data.numWorkers", 8, Origin.USER),
        (
            {"data.numWorkers": 16, "resources": {"cpu": "16"}},
            None,
            "data.numWorkers",
            16,
            Origin.USER,
        ),
    ],
)
def test_derived_value_has_origin_sized_when_unspecified(
    changes: dict[str, Any], facts: Facts | None, place: str, value: object, origin: Origin
) -> None:
    resolved = resolve(make_job(changes), facts)
    assert (resolved.values()[place], resolved.origins[place]) == (value, origin)


@pytest.mark.parametrize(
    ("given", "index", "origin"),
    [
        ({}, "/mnt/runs/checkpoints/indexes", Origin.SIZED),
        ({"indexPath": "/mnt/runs/i"}, "/mnt/runs/i", Origin.USER),
        ({"index": "BM25", "embedding": None}, "", Origin.DEFAULT),
    ],
)
def test_index_path_defaults_to_checkpoint_folder(
    given: dict[str, Any], index: str, origin: Origin
) -> None:
    endpoints = [ENDPOINT, {"name": "own", "managed": DENSE | given}]
    resolved = resolve(make_job({"retrieval": {"mode": "Prompt", "endpoints": endpoints}}))
    place = "retrieval.endpoints[1].managed.indexPath"
    assert (resolved.values()[place], resolved.origins[place]) == (index, origin)


@pytest.mark.parametrize(
    ("endpoints", "length", "tokens"),
    [
        ([], 200, 150),
        ([ENDPOINT | {"topK": 5}, ENDPOINT | {"topK": 1}], 200, 30),
        ([ENDPOINT | {"topK": 1}, ENDPOINT | {"topK": 5}], 200, 30),
        ([ENDPOINT | {"topK": 7}], 8, 1),
    ],
)
def test_max_passage_tokens_default_fits_largest_top_k(
    endpoints: list[dict[str, Any]], length: int, tokens: int
) -> None:
    retrieval = {"mode": "Prompt", "endpoints": endpoints}
    resolved = resolve(make_job({"retrieval": retrieval, "data.maxPromptLength": length}))
    assert resolved.spec.retrieval.max_passage_tokens == tokens


def test_max_passage_tokens_keep_default_when_passages_fit() -> None:
    length = 4 * make_job().spec.retrieval.max_passage_tokens  # × 0.75 / 3 is exactly that length
    retrieval = {"mode": "Prompt", "endpoints": [ENDPOINT]}
    resolved = resolve(make_job({"retrieval": retrieval, "data.maxPromptLength": length}))
    assert resolved.origins["retrieval.maxPassageTokens"] is Origin.DEFAULT


def test_config_contains_schema_digest_of_image() -> None:
    assert config_of(make_job()).schema_digest == schema_digest()
    assert config_of(make_job(), schema="abc").schema_digest == "abc"


def test_epochs_are_ignored_when_rows_are_unknown_or_steps_are_specified() -> None:
    job = make_job(TWO_EPOCHS | {"data.trainBatchSize": 1})
    assert config_of(job, None).training.total_steps == 0
    both = make_job({"training": {"totalSteps": 5, "epochs": 2}})
    assert config_of(both).training.total_steps == 5


def test_steps_from_epochs_are_limited_to_max_steps() -> None:
    facts = Facts(rows=10**12)
    assert resolve(make_job(TWO_EPOCHS), facts).spec.training.total_steps == MAX_STEPS


@pytest.mark.parametrize("pinned", [Pinned(precision="FP8", attention="Other"), Pinned()])
def test_auto_is_kept_when_pinned_value_is_unknown(pinned: Pinned) -> None:
    config = config_of(make_job({"resources": {"device": "CPU"}}), KNOWN_TINY, pinned=pinned)
    assert config.training.precision is Precision.AUTO
    assert config.model.attention is Attention.AUTO


def test_epochs_are_converted_to_steps_when_rows_are_known() -> None:
    job = make_job({"training": {"epochs": 2}, "data.trainBatchSize": 96})
    assert resolve(job).spec.training.total_steps == 0
    assert resolve(job, KNOWN_7B).spec.training.total_steps == 208  # 2 × floor(10,000 / 96)
    assert config_of(job).training.total_steps == 208


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_trainer_config_round_trips_through_json(path: Any) -> None:
    config = config_of(make_sample(path))
    assert TrainerConfig.model_validate_json(config.to_json()) == config


@pytest.mark.row("C12")
@pytest.mark.parametrize(
    ("resources", "rollout", "ranks", "engines", "per_rank", "per_engine"),
    [
        ({"device": "CPU"}, {}, 1, 1, 0.0, 0.0),
        ({"device": "CPU", "nodes": 2, "ranks": 2}, {}, 4, 1, 0.0, 0.0),
        ({"device": "CPU", "placement": "Disaggregated", "rolloutEngines": 3}, {}, 1, 3, 0.0, 0.0),
        ({"gpusPerNode": 8}, {}, 8, 8, 0.6, 0.4),
        ({"gpusPerNode": 8, "nodes": 2}, {}, 16, 16, 0.6, 0.4),
        (
            {"gpusPerNode": 8, "placement": "Disaggregated", "rolloutGpus": 4},
            {"tensorParallelSize": 2},
            8,
            2,
            1.0,
            2.0,
        ),
    ],
)
def test_resources_determine_process_counts(
    resources: dict[str, Any],
    rollout: dict[str, Any],
    ranks: int,
    engines: int,
    per_rank: float,
    per_engine: float,
) -> None:
    world = config_of(make_job({"resources": resources, "rollout": rollout})).world
    assert (world.num_ranks, world.num_engines) == (ranks, engines)
    assert (world.gpus_per_rank, world.gpus_per_engine) == (per_rank, per_engine)


@pytest.mark.parametrize(
    ("resources", "per_rank", "per_engine"),
    [
        ({"device": "CPU"}, 2, 2),
        ({"device": "CPU", "cpu": "1500m"}, 1, 1),
        ({"device": "CPU", "cpu": "500m", "ranks": 2}, 1, 2),
        ({"device": "CPU", "cpu": "8", "ranks": 2, "nodes": 3}, 4, 8),
        ({"device": "CPU", "cpu": "4", "ranks": 2, "placement": "Disaggregated"}, 2, 4),
        ({"device": "CPU", "cpu": "500m", "placement": "Disaggregated"}, 1, 1),
        ({"device": "CPU", "placement": "Disaggregated"}, 2, 1),
        ({"gpusPerNode": 8, "cpu": "64"}, 1, 1),
    ],
)
def test_cpu_ranks_and_engine_share_all_pod_cpus(
    resources: dict[str, Any], per_rank: int, per_engine: int
) -> None:
    world = config_of(make_job({"resources": resources})).world
    assert (world.threads_per_rank, world.threads_per_engine) == (per_rank, per_engine)


def test_pinned_values_replace_auto() -> None:
    job = make_job({"resources": {"device": "CPU"}})
    config = config_of(job, KNOWN_TINY, pinned=Pinned(precision="FP32", attention="Sdpa"))
    assert config.training.precision is Precision.FP32
    assert config.model.attention is Attention.SDPA


def test_user_values_take_precedence_over_pinned_values() -> None:
    job = make_job({"resources": {"device": "CPU"}, "training": {"precision": "BF16"}})
    assert config_of(job, pinned=Pinned(precision="FP32")).training.precision is Precision.BF16


SAME_RESUME: list[dict[str, Any]] = [
    {"training": {"totalSteps": 2000}},
    {"training": {"totalSteps": 1000, "gradientCheckpointing": True}},
    {"training": {"totalSteps": 1000, "tokensPerMicroBatch": 4096}},
    {"training": {"totalSteps": 1000, "rowLayout": "Padded"}},
    {"training": {"totalSteps": 1000, "precision": "FP32"}},
    {"checkpoint.everySteps": 7},
    {"monitoring": {"mode": "Full", "logDir": "/mnt/runs/logs"}},
    {"rollout": {"gpuMemoryUtilization": 0.5, "maxNumSeqs": 64}},
    {"data.numWorkers": 2},
    {"validation": {"everySteps": 5}, "data.validationFiles": ["/mnt/runs/held_out.jsonl"]},
    {"resources": {"gpusPerNode": 4}},
    {"model": {"path": "/mnt/runs/moved"}},  # the content of the files is compared instead
    {"data.trainFiles": ["/mnt/runs/moved.jsonl"]},
]
OTHER_RESUME: list[dict[str, Any]] = [
    {"data.trainBatchSize": 64},
    {"data.maxSamples": 500},
    {"data.columns": {"answer": "code"}},
    {"training": {"totalSteps": 1000, "seed": 1}},
    {"training": {"totalSteps": 1000, "learningRate": 1e-5}},
    {"algorithm": {"clipRatioLow": 0.1}},
    {"rollout": {"n": 4}},
    {"reward": {"functions": [{"name": "F1"}]}},
]


@pytest.mark.parametrize("changes", SAME_RESUME, ids=str)
def test_resume_hash_ignores_fields_that_do_not_affect_results(changes: dict[str, Any]) -> None:
    base, changed = config_of(make_job()).attempt, config_of(make_job(changes)).attempt
    assert changed.resume_hash == base.resume_hash
    assert changed.config_hash != base.config_hash


@pytest.mark.parametrize("changes", OTHER_RESUME, ids=str)
def test_resume_hash_depends_on_resume_values(changes: dict[str, Any]) -> None:
    assert (
        config_of(make_job(changes)).attempt.resume_hash
        != config_of(make_job()).attempt.resume_hash
    )


def test_endpoint_url_does_not_change_resume_hash() -> None:
    here = make_job({"retrieval": {"mode": "Prompt", "endpoints": [ENDPOINT]}})
    there = make_job(
        {"retrieval": {"mode": "Prompt", "endpoints": [ENDPOINT | {"url": "http://new:1/r"}]}}
    )
    assert config_of(here).attempt.resume_hash == config_of(there).attempt.resume_hash


@pytest.mark.parametrize("mitigation", Mitigation)
def test_mitigations_change_config_hash_but_not_resume_hash(mitigation: Mitigation) -> None:
    base = config_of(make_job()).attempt
    lowered = config_of(make_job(), mitigations=[mitigation]).attempt
    assert lowered.resume_hash == base.resume_hash
    assert lowered.config_hash != base.config_hash


@pytest.mark.row("B3")
def test_attempt_number_does_not_change_config_hash() -> None:
    job = make_job()
    resolved = resolve(job)
    first = trainer_config(job, resolved, number=1).attempt
    second = trainer_config(job, resolved, number=2).attempt

    assert first.config_hash == second.config_hash
    assert (first.number, second.number) == (1, 2)


def test_recovery_settings_do_not_change_config_hash() -> None:
    patient = make_job({"recovery": {"maxRestarts": 3}})
    assert config_of(patient).attempt.config_hash == config_of(make_job()).attempt.config_hash


def test_managed_endpoint_urls_are_resolved_before_hashing() -> None:
    managed = {"corpus": "/mnt/runs/corpus.jsonl"}
    given = [
        {"name": "kb", "managed": managed},
        {"name": "chat", "protocol": "RagChat", "managed": managed},
        {"name": "own", "url": "http://own/retrieve"},
    ]
    job = make_job({"retrieval.endpoints": given})
    addresses = {"kb": "http://kb:8000", "chat": "http://chat:8000"}

    config = config_of(job, retriever_addresses=addresses)

    assert [endpoint.url for endpoint in config.retrieval.endpoints] == [
        "http://kb:8000/retrieve",
        "http://chat:8000/chat",
        "http://own/retrieve",
    ]
    assert config.retrieval.managed["kb"].corpus == "/mnt/runs/corpus.jsonl"
    unresolved = config_of(job).attempt
    assert config.attempt.config_hash != unresolved.config_hash
    assert config.attempt.resume_hash == unresolved.resume_hash
