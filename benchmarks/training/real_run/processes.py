"""Runs commands with time limits, and keeps the state of the real run in a file."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trials import ROOT, commit

POLL_S = 0.5
"""Seconds between two checks of a running command."""

PATIENCE_S = 40.0
"""Time that a command has to save its work after SIGTERM, in seconds, before SIGKILL."""


class OutOfTime(Exception):
    """The time of this process is over; the same command continues later."""


@dataclass(frozen=True)
class Ended:
    """The result of a command."""

    code: int
    was_stopped: bool
    seconds: float

    @property
    def failed(self) -> bool:
        return self.code not in (0, 75) and not self.was_stopped


class Clock:
    """Counts the seconds of this process and of earlier ones."""

    def __init__(self, before: float, seconds: float, stop_after: float) -> None:
        self.before, self.seconds, self.stop_after, self.began = before, seconds, stop_after, time.monotonic()

    @property
    def here(self) -> float:
        return time.monotonic() - self.began

    @property
    def elapsed(self) -> float:
        return self.before + self.here

    @property
    def left(self) -> float:
        return self.seconds - self.elapsed


class Runner:
    """Runs commands with time limits, chooses their GPUs, and keeps the state of the run in ``state.json``."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.work: Path = options.work.resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self.state: dict[str, Any] = {"elapsed": 0.0, "done": {}, "commands": {}, "events": []}
        if (self.work / "state.json").exists():
            self.state = json.loads((self.work / "state.json").read_text())
        self.clock = Clock(self.state["elapsed"], options.seconds, options.stop_after)
        self.lock = threading.RLock()
        self.running: list[subprocess.Popen[bytes]] = []
        self.problem: BaseException | None = None
        self.over = threading.Event()

    # ---- devices

    @property
    def is_one_gpu(self) -> bool:
        return bool(self.options.judge_gpus == self.options.train_gpu)

    @property
    def gpus(self) -> list[str]:
        return [] if self.options.device == "cpu" else self.options.judge_gpus.split(",")

    @property
    def side_judge(self) -> list[str]:
        return self.gpus[-1:]

    @property
    def rl_judges(self) -> list[str]:
        chosen = self.options.rl_judge_gpus
        return chosen.split(",") if chosen and self.gpus else self.gpus[:-1] or self.gpus

    def judge_device(self, gpus: Sequence[str]) -> str:
        return ",".join(f"cuda:{gpu}" for gpu in gpus) if gpus else "cpu"

    def train_device(self) -> str:
        return f"cuda:{self.options.train_gpu}" if self.gpus else "cpu"

    # ---- commands

    def call(
        self,
        name: str,
        command: Sequence[str],
        limit_s: float,
        is_enough: Callable[[], bool] = lambda: False,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> Ended:
        """Runs a command. Sends SIGTERM after ``limit_s``, when ``is_enough``, or when this process must end."""
        if self.must_end():
            raise OutOfTime(f"{name} was not started")
        words = [f"{key}={value}" for key, value in (environment or {}).items()]
        shown = shlex.join([*words, "python", *command[1:]])
        self.say(f"{name} ({max(limit_s, 0):.0f} s): {shown}")
        self.state["commands"][name] = shown
        if limit_s <= 5:
            self.event(f"{name} has no time left")
            return Ended(75, True, 0.0)
        log = self.work / "logs" / f"{name}.log"
        log.parent.mkdir(exist_ok=True)
        began, was_stopped = time.monotonic(), False
        with log.open("ab") as file:
            process = subprocess.Popen(
                list(command),
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={"OMP_NUM_THREADS": "4", **os.environ, **(environment or {})},
                start_new_session=True,
            )
        with self.lock:
            self.running.append(process)
        try:
            while process.poll() is None:
                time.sleep(POLL_S)
                self.keep()  # saves the seconds in case this process is killed
                if self.must_end() or time.monotonic() - began > limit_s or is_enough():
                    was_stopped = True
                    stop(process)
        finally:
            with self.lock:
                self.running.remove(process)
        ended = Ended(process.returncode, was_stopped, time.monotonic() - began)
        self.say(f"{name} ended with exit code {ended.code} after {ended.seconds:.0f} s")
        if ended.failed:
            print("\n".join(log.read_text(errors="replace").splitlines()[-15:]), flush=True)
        if self.over.is_set() or self.clock.here > self.clock.stop_after:
            self.add_seconds(name.partition("-")[0] if name.startswith("rl-") and name[3:].isdigit() else name, ended)
            raise OutOfTime(f"{name} was stopped")
        return ended

    def must_end(self) -> bool:
        return self.over.is_set() or self.clock.here > self.clock.stop_after

    def end_all(self) -> None:
        with self.lock:
            running = list(self.running)
        for process in running:
            stop(process)

    # ---- state

    @property
    def commit(self) -> str:
        return self.options.commit or commit()

    @property
    def kind(self) -> str:
        """``cuda`` or ``cpu``, for names of files."""
        return str(self.options.device)

    def say(self, line: str) -> None:
        with self.lock:
            print(f"[{self.clock.elapsed:6.1f} s] {line}", flush=True)

    def event(self, line: str) -> None:
        self.say(line)
        self.state["events"].append([round(self.clock.elapsed, 1), line])

    def add_seconds(self, name: str, ended: Ended) -> None:
        self.state[f"{name}_seconds"] = round(self.state.get(f"{name}_seconds", 0.0) + ended.seconds, 1)

    def done(self, name: str) -> None:
        self.state["done"][name] = round(self.clock.elapsed, 1)
        self.save()

    def save(self) -> None:
        """Writes the state and the results."""
        self.keep()
        try:
            self.write_results()
        except (OSError, ValueError, KeyError) as error:  # the next stage writes the results again
            self.event(f"the results could not be written: {type(error).__name__}: {error}")

    def write_results(self) -> None:
        """Writes the results of the stages so far."""

    def keep(self) -> None:
        """Writes the state."""
        with self.lock:
            self.state["elapsed"] = self.clock.elapsed
            path = self.work / "state.json"
            path.with_suffix(".new").write_text(json.dumps(self.state, indent=1))
            path.with_suffix(".new").replace(path)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Sends SIGTERM, waits while the command saves its work, and sends SIGKILL if it takes too long."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
