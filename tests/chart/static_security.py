"""Run checkov on the manifests of the chart and the operator; findings are fixed or excused.

`make checkov` installs it into a separate environment. Objects of the chart have their reasons as
annotations of checkov, which apply wherever the chart is scanned; `checkov.yaml` in this folder has
all others. A reason without a failure is an error, too.
"""

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from raggrpo_cli.manifests_text import as_yaml
from support.builders.operator.jobs import KNOWN_7B, SAMPLES, make_sample
from support.builders.operator.manifests import make_clustered_job, objects_of
from support.kubernetes.helm_chart import MATRIX, Chart
from tools.kind.go_programs import tool_folder

CHART = Path("helm/raggrpo-operator").resolve()
ALONE = {"CKV_SKIP_PACKAGE_UPDATE_CHECK": "true"}
"""Disables network access."""
NOT_CHECKED = ("raycluster", "networkpolicy", "agent-networkpolicy", "claim-")
"""Kinds without checks; pods of RayClusters are written separately."""


@dataclass(frozen=True)
class Finding:
    """A check that an object may fail, and the reason."""

    check: str
    says: str
    file: Path
    resource: str
    reason: str = ""


@dataclass(frozen=True)
class Excuse:
    """Reason why objects that match patterns may fail a check."""

    check: str
    objects: tuple[str, ...]
    reason: str

    def covers(self, finding: Finding) -> bool:
        """Return whether a failure is this check on one of these objects."""
        name = str(finding.file.with_suffix(""))
        return finding.check == self.check and any(fnmatch(name, each) for each in self.objects)


def main() -> None:
    """Run all checks; exit with a message if a failure is not excused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkov", type=Path, help="its executable")
    checkov = parser.parse_args().checkov.resolve()
    excuses = read_excuses(Path(__file__).with_name("checkov.yaml"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_objects(folder)
        report = run(checkov, folder)
    failed, annotated = findings(report, "failed_checks"), findings(report, "skipped_checks")
    complaints = complaints_about(failed, annotated, excuses)
    counts = report["summary"]
    print(
        f"checkov {counts['checkov_version']}: {counts['resource_count']} resources, "
        f"{counts['passed']} checks passed, {len(annotated)} are excused by annotations, "
        f"{sum(excused(each, excuses) for each in failed)} by checkov.yaml"
    )
    if complaints:
        raise SystemExit("\n".join(complaints))


def read_excuses(path: Path) -> list[Excuse]:
    rows = yaml.safe_load(path.read_text())
    return [Excuse(row["check"], tuple(row["objects"]), row["reason"]) for row in rows]


def write_objects(folder: Path) -> None:
    """Write all renderings of the chart and all objects of the sample jobs."""
    chart = Chart(helm=tool_folder("helm") / "helm", folder=CHART)
    for case, values in MATRIX.items():
        name = case.replace(" ", "-")
        path = folder / "chart" / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        # Different release names, so that a policy does not count for pods of another rendering.
        path.write_text(yaml.safe_dump_all(chart.render(values, release=name)))
    for sample in SAMPLES:
        own = folder / "jobs" / sample.stem
        own.mkdir(parents=True)
        for name, manifest in objects_of(make_clustered_job(make_sample(sample), KNOWN_7B)).items():
            (own / f"{name}.yaml").write_text(as_yaml(manifest))


def run(checkov: Path, folder: Path) -> dict[str, Any]:
    """Return checkov's report on a folder. Raises SystemExit if it did not read all files."""
    ended = subprocess.run(
        [
            checkov, "--directory", ".", "--framework", "kubernetes", "--output", "json",
            "--skip-download", "--soft-fail", "--compact",
        ],
        cwd=folder, env=os.environ | ALONE, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    report: dict[str, Any] = json.loads(ended.stdout)
    if "results" not in report:
        raise SystemExit("checkov read no files; its output is above")
    if broken := report["results"]["parsing_errors"]:
        raise SystemExit(f"checkov cannot read {broken}")
    checked = {
        each["file_path"]
        for kind in ("passed_checks", "failed_checks", "skipped_checks")
        for each in report["results"][kind]
    }
    written = {path for path in folder.rglob("*.yaml") if not path.stem.startswith(NOT_CHECKED)}
    if unread := {f"/{path.relative_to(folder)}" for path in written} - checked:
        raise SystemExit(f"checkov read no files in {sorted(unread)}")
    return report


def findings(report: Mapping[str, Any], kind: str) -> list[Finding]:
    return [
        Finding(
            each["check_id"],
            each["check_name"],
            Path(each["file_path"].lstrip("/")),
            each["resource"],
            each["check_result"].get("suppress_comment", ""),
        )
        for each in report["results"][kind]
    ]


def excused(finding: Finding, excuses: Sequence[Excuse]) -> bool:
    """Return whether an entry of the file covers a failure."""
    return any(each.covers(finding) for each in excuses)


def complaints_about(
    failed: Sequence[Finding], annotated: Sequence[Finding], excuses: Sequence[Excuse]
) -> list[str]:
    """Return failures without a reason, and reasons without a failure."""
    lines = [
        f"{each.check} {each.says}: {each.file}, {each.resource}"
        for each in failed
        if not excused(each, excuses)
    ]
    lines += [
        f"{each.check}: {each.file}, {each.resource} is annotated without a reason"
        for each in annotated
        if not each.reason.strip()
    ]
    lines += [
        f"{excuse.check} {', '.join(excuse.objects)}: excused, but nothing fails it"
        for excuse in excuses
        if not any(excuse.covers(each) for each in failed)
    ]
    return lines


if __name__ == "__main__":
    main()
