"""Speed, memory and accuracy of policy steps on one GPU, with random weights, as a table.

Needs torch, transformers, pydantic and this repository:

    PYTHONPATH=operator:trainer_image:tests python tests/gpu/policy_step.py --table FILE

Every size runs in a separate process. MFU counts 6 FLOP for each matrix weight and position that it
is applied to (Chowdhery et al. 2022, arXiv 2204.02311, without attention): layers at every
position, the head at trained tokens. Recomputed activations therefore lower it. `--device cpu
--sizes tiny` tests the script, `--profile` prints the kernels of the first row.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

GIB = 2**30
TIMED_STEPS = 2


@dataclass(frozen=True)
class Size:
    """Shape of a Qwen2 model of this size, or of some of its layers."""

    hidden: int
    inner: int
    layers: int
    heads: int
    groups: int
    vocabulary: int
    tied: bool


SIZES = {
    "tiny": Size(128, 256, 2, 4, 2, 512, True),
    "0.5B": Size(896, 4864, 24, 14, 2, 151_936, True),
    "1.5B": Size(1536, 8960, 28, 12, 2, 151_936, True),
    # The training state of all layers is 114 GiB.
    "7B, 6 of 28 layers": Size(3584, 18_944, 6, 28, 4, 152_064, False),
}


DETAILED = ("tiny", "1.5B")
"""Sizes with rows for further settings of a job."""
REPEATED = ("tiny", "0.5B")
"""Sizes whose rows also show bitwise repeatability."""


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    size: str
    layout: str = "SharedPrefix"
    precision: str = "BF16"
    checkpointing: bool = False
    compile: bool = False
    prompts: int = 8
    n: int = 8
    prompt: int = 1024
    response: int = 256
    ragged: bool = False
    """Whether response lengths vary between a quarter of `response` and `response`."""
    deterministic: bool = False
    """Whether torch's deterministic algorithms are used."""
    again: bool = False
    """Whether this is the second run of a case, for a bitwise comparison."""

    @property
    def label(self) -> str:
        """Label of the row."""
        named = ("ragged", "checkpointing", "compile", "deterministic", "again")
        flags = [name for name in named if getattr(self, name)]
        return ", ".join([self.size, self.layout, self.precision, *flags])


def cases(size: str) -> list[Case]:
    """Return the rows of a size; most differ from the first in one setting."""
    first = Case(size)
    rows = [replace(first, compile=True), first, replace(first, layout="Padded")]
    if size in DETAILED:
        ragged = replace(first, ragged=True)
        rows += [ragged, replace(ragged, layout="Padded"), replace(first, checkpointing=True)]
    if size in REPEATED:
        same = replace(first, deterministic=True)
        rows += [replace(first, again=True), same, replace(same, again=True)]
        rows += [replace(first, precision="FP16")]
    small = {"prompts": 2, "n": 4, "prompt": 64, "response": 16}
    return [replace(row, **small) for row in rows] if size == "tiny" else rows


def write_model(size: Size, folder: Path, device: str) -> None:
    """Write random weights as a Hugging Face folder."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    torch.manual_seed(0)
    config = Qwen2Config(
        hidden_size=size.hidden,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.groups,
        vocab_size=size.vocabulary,
        max_position_embeddings=8192,
        tie_word_embeddings=size.tied,
    )
    with torch.device(device):  # a GPU generates random numbers quickly
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)


def groups_of(case: Case, vocabulary: int) -> list[Any]:
    """Return a batch of random tokens."""
    from raggrpo_trainer.exchange.groups import Completion, Group

    random = Random(0)

    def tokens(number: int) -> tuple[int, ...]:
        return tuple(random.randrange(vocabulary) for _ in range(number))

    def completion() -> Completion:
        length = case.response
        if case.ragged:
            length = random.randint(length // 4, length)
        return Completion(tokens(length), (True,) * length, (-9.0,) * length)

    return [
        Group(
            tokens(case.prompt),
            tuple(completion() for _ in range(case.n)),
            tuple(1.0 if i % 2 else -1.0 for i in range(case.n)),
        )
        for _ in range(case.prompts)
    ]


def estimate(case: Case, config: Any, parameters: int) -> int:
    """Return the memory that preflight estimates for the rank, in bytes."""
    from raggrpo_api.memory.gpu import activations, training_state, unsharded_bytes
    from raggrpo_api.spec.job_spec import JobSpec
    from raggrpo_api.trainer.preflight import Facts

    size = SIZES[case.size]
    spec = JobSpec.model_validate(
        {
            "model": {"path": "/m"},
            "data": {"trainFiles": ["/d.jsonl"], "maxPromptLength": case.prompt,
                     "maxResponseLength": case.response, "trainBatchSize": case.prompts},
            "rollout": {"n": case.n},
            "checkpoint": {"path": "/c"},
        }
    ).model_copy(update={"training": config.training})  # fmt: skip
    facts = Facts(
        parameters=parameters,
        layers=size.layers,
        hidden_size=size.hidden,
        heads=size.heads,
        kv_heads=size.groups,
        head_size=size.hidden // size.heads,
        mlp_size=size.inner,
        vocabulary=size.vocabulary,
    )
    return training_state(spec, facts) + activations(spec, facts) + unsharded_bytes(spec, facts)


def operations(case: Case, parameters: int, positions: int, trained: int) -> int:
    """Return the FLOP of a step's matrix products, forward and backward."""
    size = SIZES[case.size]
    head = size.vocabulary * size.hidden
    layers = parameters - head * (1 if size.tied else 2)  # an embedding is read, not multiplied
    return 6 * (layers * positions + head * trained)


def measure(case: Case, model: Path, device: str, *, profiled: bool) -> dict[str, Any]:
    """Train a few steps; return the measurements of one row."""
    import torch

    from raggrpo_api.spec.training import TrainingSpec
    from raggrpo_trainer.exchange.policy_config import PolicyConfig
    from raggrpo_trainer.policy.policy import Policy
    from support.builders.trainer.policies import make_objective, make_policy_config

    torch.use_deterministic_algorithms(case.deterministic)
    training = TrainingSpec.model_validate(
        {"precision": case.precision, "rowLayout": case.layout, "compile": case.compile,
         "gradientCheckpointing": case.checkpointing, "learningRate": 1e-6}
    )  # fmt: skip
    plain: PolicyConfig = make_policy_config(
        model, objective=make_objective(max_response_length=case.response)
    )
    config = replace(plain, training=training, device=device)
    policy = Policy(config, rank=0, world_size=1)
    groups = groups_of(case, SIZES[case.size].vocabulary)
    few = [replace(g, completions=g.completions[:2], advantages=(1.0, -1.0)) for g in groups[:1]]
    ours, theirs = policy.logprobs(few), policy.plain_logprobs(few)
    gaps = [
        abs(a - b) for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True)
    ]
    seconds = []
    for step in range(1 + TIMED_STEPS):
        start = time.perf_counter()
        metrics = policy.step(groups, step=step + 1)
        seconds.append(time.perf_counter() - start)
    measured = {
        "device": policy.device_name,
        "parameters": policy.num_parameters,
        "first": seconds[0],
        "seconds": statistics.median(seconds[1:]),
        "positions": metrics.num_positions,
        "trained": metrics.num_trained_tokens,
        "memory": metrics.device_memory_bytes or 0,
        "estimate": estimate(case, config, policy.num_parameters),
        "gap": sum(gaps) / len(gaps),
        "finite": not metrics.non_finite,
        "checksum": policy.checksum(),
    }
    if profiled:
        profile(lambda: policy.step(groups, step=TIMED_STEPS + 2))
    return measured


def profile(step: Callable[[], Any]) -> None:
    """Print a step's longest kernels and the time outside of kernels."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    with profiler(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        start = time.perf_counter()
        step()
        wall = time.perf_counter() - start
    kernels = [each for each in profiled.key_averages() if each.device_type == DeviceType.CUDA]
    kernels.sort(key=lambda each: -each.self_device_time_total)
    busy = sum(each.self_device_time_total for each in kernels) / 1e6
    print(f"{wall:.3f} s, of which {busy:.3f} s in kernels", file=sys.stderr)
    for each in kernels[:40]:
        milliseconds = each.self_device_time_total / 1e3
        print(f"{milliseconds:8.2f} ms {each.count:6} x {each.key[:110]}", file=sys.stderr)


def line(case: Case, measured: dict[str, Any]) -> str:
    """Return a table row in Markdown."""
    from raggrpo_trainer.host.device_peaks import peak_tflops

    if "error" in measured:
        return f"| {case.label} | {measured['error']} |||||||"
    work = operations(case, *(measured[name] for name in ("parameters", "positions", "trained")))
    rate = work / measured["seconds"] / 1e12
    peak = peak_tflops(measured["device"])
    share = f"{100 * rate / peak:.0f} %" if peak else "–"
    used = f"{measured['memory'] / GIB:.1f}" if measured["memory"] else "–"
    cells = [case.label, f"{measured['seconds']:.3f}", f"{measured['first']:.1f}",
             f"{measured['trained'] / measured['seconds']:,.0f}", f"{rate:.1f}", share,
             f"{used} of {measured['estimate'] / GIB:.1f}", f"{measured['gap']:.1e}"]  # fmt: skip
    return f"| {' | '.join(cells)} |"


CELLS = ("case", "s a step", "first", "trained tokens/s", "TFLOP/s", "MFU",
         "GiB, measured of estimated", "mean gap, nats")  # fmt: skip
HEAD = f"| {' | '.join(CELLS)} |\n|{'---|' * len(CELLS)}"


def rows_of(size: str, model: Path, device: str, *, profiled: bool) -> None:
    """Print the measurements of a size, one JSON object per line."""
    import torch

    from raggrpo_trainer.exchange.rendezvous import file_rendezvous
    from raggrpo_trainer.policy.process_group import init_process_group

    write_model(SIZES[size], model, device)
    init_process_group(0, 1, file_rendezvous(), device)
    for case in cases(size):
        try:
            measured = measure(case, model, device, profiled=profiled and case == cases(size)[0])
        except Exception as error:  # the result of this row
            text = str(error).strip() or type(error).__name__
            measured = {"error": text.splitlines()[0][:160]}
        print(json.dumps(measured), flush=True)
        torch._dynamo.reset()
        gc.collect()  # the modules of the policy form reference cycles
        if device == "cuda":
            torch.cuda.empty_cache()


def rows_in_subprocess(
    size: str, model: Path, device: str, *, profiled: bool
) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Yield the measurements of each row."""
    command = [sys.executable, __file__, "--device", device, "--rows-of", size]
    command += ["--model", str(model), *(["--profile"] if profiled else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for case in cases(size):
            text = child.stdout.readline()
            yield case, json.loads(text) if text else {"error": "the process exited"}


def problems_of(measured: dict[Case, dict[str, Any]]) -> list[str]:
    """Return the problems in the measurements; speed is not checked."""
    problems = [f"{case}: {one['error']}" for case, one in measured.items() if "error" in one]
    done = {case: one for case, one in measured.items() if "error" not in one}
    problems += [f"{case}: not finite" for case, one in done.items() if not one["finite"]]
    return problems + [
        f"{c}: {o['gap']:.2g} nats apart" for c, o in done.items() if o["gap"] > 0.05
    ]


def repeats(measured: dict[Case, dict[str, Any]]) -> Iterator[str]:
    """Yield for each case that ran twice whether the results are bitwise equal."""
    for case, one in measured.items():
        other = measured.get(replace(case, again=False), {})
        if case.again and "error" not in one | other:
            same = one["checksum"] == other["checksum"]
            yield f"{case.label}: {'bitwise equal' if same else 'different bits'}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all rows, or those of one size in a subprocess."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--sizes", nargs="*", choices=SIZES, default=list(SIZES)[1:])
    parser.add_argument("--table", type=Path)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--rows-of", help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rows_of:
        rows_of(options.rows_of, options.model, options.device, profiled=options.profile)
        os._exit(0)  # skip the shutdown of the process group
    lines = [HEAD]
    print(HEAD)
    everything: dict[Case, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.sizes:
            model = Path(folder) / f"model-{list(SIZES).index(name)}"
            for case, measured in rows_in_subprocess(
                name, model, options.device, profiled=options.profile
            ):
                everything[case] = measured
                lines.append(line(case, measured))
                print(lines[-1], flush=True)
    results = ["", *(f"- {each}" for each in repeats(everything))]
    print("\n".join(results))
    if options.table:
        options.table.write_text("\n".join([*lines, *results]) + "\n")
    problems = problems_of(everything)
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
