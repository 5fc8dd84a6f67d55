import re
import signal
from pathlib import Path

import pytest

from support.builders.operator.local_job import LocalJob, kill
from support.processes.ray_tree import kill_gcs


@pytest.mark.row("A16", "B10", "B16")
def test_run_recovers_from_driver_crash_and_lost_head(tmp_path: Path) -> None:
    job = LocalJob(tmp_path)
    process = job.start(crash_at={"1": 7}, steps_per_second=4)
    attempts = job.checkpoints / "logs" / "attempts"
    job.wait_for((attempts / "2" / "config.json").exists, process)
    temp_dir = Path(job.state["temp_dir"])

    kill_gcs(job.state["mark"])
    code, output = job.end_of(process)
    job.wait_until_gone()

    assert code == 0, output
    assert job.attempts() == [
        ("RolloutEngineLost", "First"),
        ("HeadLost", "WarmCluster"),
        ("Succeeded", "NewCluster"),
    ]
    assert "Attempt 1 ended at step 7 (RolloutEngineLost)" in output
    assert "gcs_server with signal 9 (SIGKILL)" in output
    assert "complete, step 20 of 20, 2 restarts" in output
    assert sorted(path.name for path in attempts.iterdir()) == ["1", "2", "3"]
    assert "crashing on order" in (attempts / "1" / "driver.log").read_text()
    assert all((attempts / n / "config.json").exists() for n in "123")
    assert all((job.dir / name).exists() for name in ("summary.json", "report.html", "job.yaml"))
    assert not temp_dir.exists()

    code, output = job.run()

    assert code == 0
    assert (
        "is complete (step 20 of 20). To continue training, increase spec.training.totalSteps"
        in output
    )
    assert f"rm -r {job.dir} {job.checkpoints}" in output
    assert len(job.attempts()) == 3


@pytest.mark.row("A30", "B23")
def test_run_resumes_after_interrupt_and_kill(tmp_path: Path) -> None:
    job = LocalJob(tmp_path, {"training": {"totalSteps": 60}})

    stubborn = job.start(ignores_stop=True, steps_per_second=2)
    job.wait_for(lambda: job.step >= 1, stubborn)
    stubborn.send_signal(signal.SIGINT)
    job.wait_for(lambda: job.state["status"]["restartState"]["intent"] == "Suspended", stubborn)
    stubborn.send_signal(signal.SIGINT)
    code, output = job.end_of(stubborn)
    job.wait_until_gone()
    assert (code, "interrupted: exited without saving" in output) == (130, True), output

    killed = job.start(steps_per_second=4)
    job.wait_for(lambda: job.step >= 6, killed)
    temp_dir = Path(job.state["temp_dir"])
    kill(killed)
    job.wait_until_gone()
    assert temp_dir.exists()

    interrupted = job.start(steps_per_second=4)
    job.wait_for(lambda: job.step >= 12, interrupted)
    interrupted.send_signal(signal.SIGTERM)
    code, output = job.end_of(interrupted)
    job.wait_until_gone()
    saved = int((job.checkpoints / "saved-step").read_text())
    assert code == 130, output
    assert "stopping: saving a checkpoint first; interrupt again to exit immediately" in output
    assert f"suspended, checkpoint at step {saved}; run the same command to resume" in output
    assert "(Suspended): interrupted by SIGTERM" in output
    assert "spec.suspend" not in output
    assert not temp_dir.exists()

    code, output = job.run(steps_per_second=50)
    job.wait_until_gone()
    assert code == 0, output
    assert all(int(step) >= saved for step in re.findall(r"Step (\d+)/", output)), output
    causes = [cause for cause, _ in job.attempts()]
    attempts = job.state["status"]["attempts"]
    assert causes == ["Suspended", "HeadLost", "Suspended", "Succeeded"], attempts
    last, _, dead, _ = attempts
    assert last["fromStep"] == saved
    assert "`raggrpo run` was killed" in dead["message"]
