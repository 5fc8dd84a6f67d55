"""Inject the faults named in RAGGRPO_FAULT into a running trainer."""

import asyncio
import dataclasses
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray.exceptions import RayTaskError

from raggrpo_trainer.checkpoint.folder import CheckpointName
from raggrpo_trainer.checkpoint.store import SavePhase
from raggrpo_trainer.driver.hooks import Hooks
from raggrpo_trainer.engines.engine_pool import EnginePool
from raggrpo_trainer.exchange.groups import Group
from raggrpo_trainer.host.pod_processes import PodProcess, send_signal, this_process
from raggrpo_trainer.ranks.ranks import Ranks, task_error

from .faults import Faults

log = logging.getLogger(__name__)

HANG_SECONDS = 86_400.0


class Drill(Hooks):
    """Hooks that inject faults when they are due."""

    def __init__(self, faults: Faults, checkpoints: Path) -> None:
        self._faults = faults
        self._checkpoints = checkpoints
        self._victims: dict[str, PodProcess] = {}
        self._actors: dict[str, Any] = {}

    def resumes(self) -> bool:
        """Return False if the fault `wrong-resume` is due: the attempt then ignores checkpoints."""
        return not self._faults.take_due("wrong-resume")

    def started(self, ranks: Ranks, pool: EnginePool) -> None:
        """Record the processes and actors that faults can target."""
        rank = ranks.infos[-1].process
        engine = pool.processes[0]
        self._victims = {"driver": this_process(), "rank": rank, "engine": engine}
        self._actors = {"rank": ranks.actors[-1], "engine": pool.engines[0]}

    async def before_step(self, step: int) -> None:
        """Inject the faults that are due at the start of a step."""
        for victim, process in self._victims.items():
            if self._faults.take_due(f"kill-{victim}", step=step):
                self._kill(process, victim, f"step {step}")
        if self._faults.take_due("hang-driver", step=step):
            log.warning("drill: the driver hangs at step %d", step)
            time.sleep(HANG_SECONDS)  # noqa: ASYNC251 - the fault is a blocked loop
        for victim, actor in self._actors.items():
            if self._faults.take_due(f"hang-{victim}", step=step):
                log.warning("drill: the %s hangs at step %d", victim, step)
                actor.__ray_call__.remote(_hang)
        if gib := self._faults.take_due("use-memory", step=step):
            log.warning("drill: a rank allocates %s GiB at step %d", gib, step)
            self._actors["rank"].__ray_call__.remote(_use_memory, float(gib))
        if self._faults.take_due("exit0", step=step):
            log.warning("drill: the driver exits with code 0 at step %d", step)
            sys.stdout.flush()
            os._exit(0)
        if self._faults.take_due("freeze", step=step):
            log.warning("drill: the driver sends itself SIGSTOP at step %d", step)
            os.kill(os.getpid(), signal.SIGSTOP)
        if self._faults.take_due("oom", step=step):
            log.warning("drill: a rank raises torch's out-of-memory error at step %d", step)
            try:
                await self._actors["rank"].__ray_call__.remote(_run_out_of_gpu_memory)
            except RayTaskError as error:
                raise task_error(error) from error
        if seconds := self._faults.take_due("slow-step", step=step):
            await asyncio.sleep(float(seconds))

    def trained_groups(self, step: int, groups: Sequence[Group]) -> list[Group]:
        """Return the groups of a step, with NaN advantages if the fault `nan` is due."""
        if not self._faults.take_due("nan", step=step):
            return list(groups)
        return [
            dataclasses.replace(group, advantages=(float("nan"),) * len(group.advantages))
            for group in groups
        ]

    def during_save(self, phase: SavePhase, step: int) -> None:
        """Inject the faults that are due at this phase of a save."""
        for victim, process in self._victims.items():
            if self._faults.take_due(f"kill-{victim}", save=step, phase=str(phase)):
                self._kill(process, victim, f"phase {phase} of the save of step {step}")
        if self._faults.take_due("corrupt-checkpoint", save=step, phase=str(phase)):
            newest = max(CheckpointName.all_in(self._checkpoints))
            shard = next((self._checkpoints / str(newest)).rglob("*.distcp"))
            log.warning("drill: truncating %s to half its size", shard)
            os.truncate(shard, shard.stat().st_size // 2)
        if seconds := self._faults.take_due("pause", save=step, phase=str(phase)):
            log.warning("drill: the save of step %d pauses in phase %s", step, phase)
            time.sleep(float(seconds))

    @staticmethod
    def _kill(process: PodProcess, victim: str, when: str) -> None:
        log.warning("drill: sending SIGKILL to the %s at %s", victim, when)
        sys.stdout.flush()
        send_signal([process], signal.SIGKILL)


def _hang(_: object) -> None:
    time.sleep(HANG_SECONDS)


def _run_out_of_gpu_memory(_: object) -> None:
    import torch  # slow import, which a rank's process needs anyway

    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def _use_memory(holder: Any, gib: float) -> None:
    """Allocate memory and write to every page, because untouched pages do not count as used."""
    holder.drill = [bytearray(b"\1") * 2**26 for _ in range(int(gib * 2**4))]
