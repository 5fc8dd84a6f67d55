"""Job files, configurations and scripts made to exhaust memory or to hang, by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

RUN: Final = "python3 -m verl.trainer.main_ppo data.train_batch_size=8"


def many(line: str, count: int) -> str:
    """Return a text with `{}` in `line` replaced by 0 to `count` - 1."""
    return "".join(line.replace("{}", str(i)) for i in range(count))


def bomb(levels: int = 10) -> str:
    """Return YAML that merges 10 ** `levels` pairs."""
    rows = ["a0: &a0 {x: 1}"]
    rows += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, levels)]
    return "\n".join(rows)


SCRIPTS: Final = {
    "underscores": f"foo {'_' * 100_000}",
    "main_main_main": f"python3 -m verl.{'main_' * 20_000}! data.seed=1",
    "sft_sft_sft": f"python3 -m verl.{'sft_' * 20_000}! data.seed=1",
    "merge keys in a value": f"{RUN} data.seed='{bomb()}'",
    "tags in values": f"""{RUN} data.shuffle='!!bool maybe' data.seed='!!int ""'""",
    "infinite number": f"{RUN} trainer.save_freq=.inf",
    "unknown home": f"{RUN} --config-path='~nosuchuser' --config-name=x",
    "long path of a field": f"{RUN} a{'.a' * 200_000}=1",
    "end of a heredoc with tabs": "\n".join(
        ["cat <<'" + "\t" * 150_000 + "x'", "\t" * 300_000 + "y", RUN]
    ),
    "long double quotes": RUN + ' data.seed="' + "\\a" * 200_000 + '"',
    "reserved words": "! " * 230_000 + RUN,
    "words before case": "a " * 100_000 + "case x in " * 20_000 + f"\n{RUN}",
    "nested defaults around long text": "A="
    + "${B:-" * 200
    + "x" * 400_000
    + "}" * 200
    + f"\n{RUN} data.seed=$A",
    "long command shown often": f"A=$({'x' * 200_000})\n{RUN} data.seed={'$A' * 100_000}",
    "alternatives": "A=0\n" + many("if x; then A={}; fi\n", 20_000) + f"{RUN} data.seed=$A",
    "arithmetic of long numbers": f"A={'1' * 200_000}\n{RUN} {'data.x=$((A+A+A)) ' * 5000}",
    "long lists": RUN + many(f" data.x{{}}=[{'1,' * 1100}]", 200),
}
CONFIGURATIONS: Final = {
    "merge keys": bomb(),
    "integer of base 60": f"data: {{seed: {':'.join(['1'] * 200_000)}}}",
    "tag with a long prefix": f"%TAG ! tag:{'x' * 200_000},2000:\n---\n[{'!a 1, ' * 40_000}]",
    "long text repeated by aliases": f"s: &s {'x' * 400_000}\nl: [{'*s, ' * 9000}]",
    "default with a tag": "data: {seed: '${oc.env:X,!!bool maybe}'}",
    "surrogate": 'defaults: ["\\uD800"]',
    "NUL in a file": 'defaults: ["a\\0b"]',
    "home of an unknown user": 'hydra: {searchpath: ["~nosuchuser"]}\ndefaults: [x]',
    "tool file of an unknown user": (
        'actor_rollout_ref: {rollout: {multi_turn: {tool_config_path: "~nosuchuser/t.yaml"}}}'
    ),
    "infinite numbers": "trainer: {save_freq: .inf, test_freq: -.inf, nnodes: .nan}",
    "large ratio": (
        f"trainer: {{total_training_steps: 1{'0' * 90}}}\n"
        "actor_rollout_ref: {actor: {optim: {lr_warmup_steps_ratio: 1.0e+300}}}"
    ),
    "long path of a field": f"a{'.a' * 200_000}: 1",
    "long paths of many fields": "".join(f"{{{'k' * 7000}: " for _ in range(60))
    + "{"
    + many("k{}: 1,", 7000)
    + "}" * 61,
    "empty entries": "defaults: ['', ' ', 'optional ', 'override ', {'': x}, '@', '/', '..']",
    "choices that expand": f"defaults: [{{a: {'X' * 100_000}}}, {{b: '{'${a}' * 50_000}'}}]",
    "search path": f"hydra: {{searchpath: [{many('p{},', 9000)}]}}\n"
    f"defaults: [{many('m{},', 190)}]",
    "missing references": "data:\n" + many("  x{}: ${q.a}\n", 9000),
    "list in items": f"""data: {{b: [{"1," * 4000}], l: [{"'${data.b}'," * 5000}]}}""",
    "list in a text": f"data: {{b: [{'1,' * 4000}], l: '{'${data.b}' * 30_000}'}}",
    "nested reference to long text": (
        f"data: {{b: {'x' * 90_000}}}\nz:\n" + many("  x{}: ${a.${data.b}}\n", 5000)
    ),
    "nested references": f"data: {{seed: '{'${a' * 100}{'x' * 400_000}{'}' * 100}'}}",
}
JOBS: Final = {
    "hexadecimal number": f"spec: {{training: {{seed: 0x{'f' * 400_000}}}}}",
    "long text repeated by aliases": f"spec: {{x: &s {'x' * 400_000}, l: [{'*s, ' * 9000}]}}",
    "merge keys": bomb(),
    "unknown fields": "spec:\n  training:\n" + many("    learningRat{}: 1\n", 9000),
}


def included_often(folder: Path) -> None:
    """Include a file of 9,000 values 190 times."""
    (folder / "config.yaml").write_text(f"defaults: [{'big@_global_,' * 190}]")
    (folder / "big.yaml").write_text(many("k{}: 1\n", 9000))


def large_file_included_often(folder: Path) -> None:
    """Include a file of 450 kB 190 times."""
    (folder / "config.yaml").write_text(f"defaults: [{'big,' * 190}]")
    (folder / "big.yaml").write_text(f"x: [{'1,' * 9000}]\n# {'z' * 430_000}")


def long_chain(folder: Path) -> None:
    """Make 1,000 files of which each includes the next."""
    for i in range(1000):
        (folder / f"f{i}.yaml").write_text(f"defaults: [f{i + 1}]")
    (folder / "config.yaml").write_text("defaults: [f0]")


def loop_of_links(folder: Path) -> None:
    """Include a link to itself."""
    (folder / "loop.yaml").symlink_to("loop.yaml")
    (folder / "config.yaml").write_text("defaults: [loop]")


FOLDERS: Final[tuple[Callable[[Path], None], ...]] = (
    included_often,
    large_file_included_often,
    long_chain,
    loop_of_links,
)
