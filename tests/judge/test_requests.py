"""Messages between the Supervisor and the Examiner arrive unchanged, with each descriptor under its own name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from kernel_coder.judge.wire.limits import MESSAGE_BYTES, MESSAGE_DESCRIPTORS
from kernel_coder.judge.wire.requests import (
    _DESCRIPTORS,
    Connection,
    ForgetTask,
    Found,
    JudgeCandidate,
    MessageTooLong,
)

pytestmark = pytest.mark.cpu

FOUND = Found(
    outcome="correct",
    compiled=True,
    errors=[{"name": "output", "mismatches": 0}],
    seeds=[2**127 + 1],
    stage_s={"check": 0.1},
    kernel_share=None,
    kernels="",
    speedup=1.25,
    runtimes_ms=[0.1, 0.2],
    reference_runtimes_ms=[0.3],
)


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    supervisor, examiner = Connection.pair()
    yield supervisor, examiner
    supervisor.close()
    examiner.close()


def test_values_come_out_as_they_were_sent(ends: tuple[Connection, Connection]) -> None:
    ours, theirs = ends
    for message in (FOUND, replace(FOUND, reason="é\n", outcome="crashed"), ForgetTask()):
        ours.send(message)
        assert theirs.receive() == message


def test_each_descriptor_arrives_under_its_name_and_missing_ones_are_none(ends: tuple[Connection, Connection]) -> None:
    ours, theirs = ends
    pipes = {name: os.pipe() for name in ("channel", "process", "lock", "next_runner")}
    request = JudgeCandidate(
        backend="torch",
        source="pass",
        time_limit_s=1.0,
        reference_channel=None,
        reference_process=None,
        **{name: read for name, (read, _) in pipes.items()},
    )
    ours.send(request)
    received = theirs.receive()
    assert isinstance(received, JudgeCandidate)
    assert (received.source, received.reference_channel, received.reference_process) == ("pass", None, None)
    for name, (read, write) in pipes.items():
        os.write(write, name.encode())
        assert getattr(received, name) != read
        assert os.read(getattr(received, name), 100).decode() == name
        os.close(read)
        os.close(write)
    received.close_descriptors()
    for name in pipes:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(getattr(received, name))


def test_no_message_has_more_descriptors_than_a_receiver_takes() -> None:
    assert max(map(len, _DESCRIPTORS.values())) <= MESSAGE_DESCRIPTORS


def test_a_message_that_is_too_long_is_refused_before_it_is_sent(ends: tuple[Connection, Connection]) -> None:
    ours, theirs = ends
    with pytest.raises(MessageTooLong, match=f"too long: at most {MESSAGE_BYTES}"):
        ours.send(replace(FOUND, kernels="x" * MESSAGE_BYTES))
    ours.send(ForgetTask())
    assert isinstance(theirs.receive(), ForgetTask)


def test_closed_connection_delivers_no_message_and_cannot_send(ends: tuple[Connection, Connection]) -> None:
    ours, theirs = ends
    theirs.close()
    assert ours.receive() is None
    with pytest.raises(OSError, match=r"Broken pipe"):
        ours.send(ForgetTask())
