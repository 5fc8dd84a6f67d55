"""Speed, memory and exactness of the policy's step on one GPU, with random weights; one table.

Needs torch, transformers and pydantic besides this project's own source:

    PYTHONPATH=operator:trainer_image:tests python tests/gpu/policy_step.py --table FILE

Every size is a process of its own. MFU counts 6 floating-point operations for each weight of a
matrix and position that it was applied to (Chowdhery et al. 2022, arXiv 2204.02311, without
attention): the layers' at every position, the head's at the trained tokens alone. So recomputed
activations lower it. `--device cpu --sizes tiny` tries the script itself, `--profile` adds where
the first row's time went.
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
    """A Qwen2 of the shape that is sold under this name, or some of its layers."""

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
    # The training state of the whole model is 114 GiB; its layers are as wide.
    "7B, 6 of 28 layers": Size(3584, 18_944, 6, 28, 4, 152_064, False),
}


CLOSELY = ("tiny", "1.5B")
"""Sizes with a row for what else a job can choose."""
REPEATED = ("tiny", "0.5B")
"""Sizes whose rows also show what repeats to the bit."""


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
    """Responses of many lengths, down to a quarter of `response`, as they are when sampled."""
    deterministic: bool = False
    """With torch's deterministic algorithms."""
    again: bool = False
    """The same run once more, for its bits."""

    @property
    def words(self) -> str:
        """What the table calls it."""
        named = ("ragged", "checkpointing", "compile", "deterministic", "again")
        flags = [name for name in named if getattr(self, name)]
        return ", ".join([self.size, self.layout, self.precision, *flags])


def cases(size: str) -> list[Case]:
    """Return a size's rows; most differ from the first in one thing."""
    first = Case(size)
    rows = [replace(first, compile=True), first, replace(first, layout="Padded")]
    if size in CLOSELY:
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
    with torch.device(device):  # a GPU makes random numbers in no time
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
    """Return what preflight would expect the rank to need, in bytes."""
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
    """Return the floating-point operations of a step's matrix products, forward and backward."""
    size = SIZES[case.size]
    head = size.vocabulary * size.hidden
    layers = parameters - head * (1 if size.tied else 2)  # an embedding is read, not multiplied
    return 6 * (layers * positions + head * trained)


def measure(case: Case, model: Path, device: str, *, profiled: bool) -> dict[str, Any]:
    """Train a few steps; return the figures of one row."""
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
        began = time.perf_counter()
        metrics = policy.step(groups, step=step + 1)
        seconds.append(time.perf_counter() - began)
    found = {
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
    return found


def profile(step: Callable[[], Any]) -> None:
    """Print a step's longest kernels, and how long the device did nothing."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    with profiler(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        began = time.perf_counter()
        step()
        wall = time.perf_counter() - began
    kernels = [each for each in found.key_averages() if each.device_type == DeviceType.CUDA]
    kernels.sort(key=lambda each: -each.self_device_time_total)
    busy = sum(each.self_device_time_total for each in kernels) / 1e6
    print(f"{wall:.3f} s, of which {busy:.3f} s in kernels", file=sys.stderr)
    for each in kernels[:40]:
        milliseconds = each.self_device_time_total / 1e3
        print(f"{milliseconds:8.2f} ms {each.count:6} x {each.key[:110]}", file=sys.stderr)


def line(case: Case, found: dict[str, Any]) -> str:
    """Return a row of the table."""
    from raggrpo_trainer.host.device_peaks import peak_tflops

    if "error" in found:
        return f"| {case.words} | {found['error']} |||||||"
    work = operations(case, *(found[name] for name in ("parameters", "positions", "trained")))
    rate = work / found["seconds"] / 1e12
    peak = peak_tflops(found["device"])
    share = f"{100 * rate / peak:.0f} %" if peak else "–"
    used = f"{found['memory'] / GIB:.1f}" if found["memory"] else "–"
    cells = [case.words, f"{found['seconds']:.3f}", f"{found['first']:.1f}",
             f"{found['trained'] / found['seconds']:,.0f}", f"{rate:.1f}", share,
             f"{used} of {found['estimate'] / GIB:.1f}", f"{found['gap']:.1e}"]  # fmt: skip
    return f"| {' | '.join(cells)} |"


CELLS = ("case", "s a step", "first", "trained tokens/s", "TFLOP/s", "MFU",
         "GiB, measured of estimated", "mean gap, nats")  # fmt: skip
HEAD = f"| {' | '.join(CELLS)} |\n|{'---|' * len(CELLS)}"


def rows_of(size: str, model: Path, device: str, *, profiled: bool) -> None:
    """Print a size's figures, a row a line."""
    import torch

    from raggrpo_trainer.policy.process_group import init_process_group
    from support.processes.ports import free_port

    write_model(SIZES[size], model, device)
    init_process_group(0, 1, "127.0.0.1", free_port(), device)
    for case in cases(size):
        try:
            found = measure(case, model, device, profiled=profiled and case == cases(size)[0])
        except Exception as error:  # it is this row's result
            text = str(error).strip() or type(error).__name__
            found = {"error": text.splitlines()[0][:160]}
        print(json.dumps(found), flush=True)
        torch._dynamo.reset()
        gc.collect()  # the policy's modules refer to each other
        if device == "cuda":
            torch.cuda.empty_cache()


def in_a_process(
    size: str, model: Path, device: str, *, profiled: bool
) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Yield the figures of each row."""
    command = [sys.executable, __file__, "--device", device, "--rows-of", size]
    command += ["--model", str(model), *(["--profile"] if profiled else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for case in cases(size):
            text = child.stdout.readline()
            yield case, json.loads(text) if text else {"error": "its process ended"}


def wrong(found: dict[Case, dict[str, Any]]) -> list[str]:
    """Return what is not as it must be; speed is only told."""
    problems = [f"{case}: {one['error']}" for case, one in found.items() if "error" in one]
    done = {case: one for case, one in found.items() if "error" not in one}
    problems += [f"{case}: not finite" for case, one in done.items() if not one["finite"]]
    return problems + [f"{c}: {o['gap']:.2g} nats off" for c, o in done.items() if o["gap"] > 0.05]


def repeats(found: dict[Case, dict[str, Any]]) -> Iterator[str]:
    """Yield whether rows that ran twice came to the same bits."""
    for case, one in found.items():
        other = found.get(replace(case, again=False), {})
        if case.again and "error" not in one | other:
            same = one["checksum"] == other["checksum"]
            yield f"{case.words}: {'the same bits' if same else 'other bits'}"


def main(given: Sequence[str] | None = None) -> int:
    """Run all rows, or those that a parent asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--sizes", nargs="*", choices=SIZES, default=list(SIZES)[1:])
    parser.add_argument("--table", type=Path)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--rows-of", help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    if options.rows_of:
        rows_of(options.rows_of, options.model, options.device, profiled=options.profile)
        os._exit(0)  # a process group of one has nobody to say goodbye to
    lines = [HEAD]
    print(HEAD)
    everything: dict[Case, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.sizes:
            model = Path(folder) / f"model-{list(SIZES).index(name)}"
            for case, found in in_a_process(name, model, options.device, profiled=options.profile):
                everything[case] = found
                lines.append(line(case, found))
                print(lines[-1], flush=True)
    told = ["", *(f"- {each}" for each in repeats(everything))]
    print("\n".join(told))
    if options.table:
        options.table.write_text("\n".join([*lines, *told]) + "\n")
    problems = wrong(everything)
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
