"""Opens a judge: in this process, on several GPUs, behind a URL, or on a Ray cluster."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

from kernel_coder.judge.supervisor.batching import AnyJudge, devices_of
from kernel_coder.judge.supervisor.client import Client
from kernel_coder.judge.supervisor.judge import Judge
from kernel_coder.judge.supervisor.pool import JudgePool
from kernel_coder.judge.supervisor.ray_pool import RayJudge


def open_judge(device: str = "cpu", backend: str | None = None, **options: Any) -> AnyJudge:
    """Open the judge that `device` names.

    ============================== ====================================================================================
    ``cpu``, ``cuda:1``            a :class:`kernel_coder.judge.Judge` in this process
    ``cuda:0,cuda:1``              a :class:`kernel_coder.judge.JudgePool`; ``config.workers`` counts for each device
    ``http://127.0.0.1:8400``      a :class:`kernel_coder.judge.Client` of ``kernel-coder serve``
    ``ray://ADDRESS?device=cuda``  a :class:`kernel_coder.judge.RayJudge`. ADDRESS is ``auto`` (the cluster of this
                                   machine), ``local`` (a new one) or ``host:port``; ``device`` is cpu if not given
    ============================== ====================================================================================

    Args:
        device: where the judge works.
        backend: the language of candidates, unless a call names another; None: that of their task.
        options: arguments of the judge's class, such as ``config``.

    Raises:
        ValueError: the device is unknown, or a judge cannot be opened there.
    """
    if device.startswith(("http://", "https://")):
        return Client(device, backend, config=options.get("config"))
    if device.startswith("ray://"):
        parts = urlsplit(device)
        address = None if parts.netloc == "local" else parts.netloc
        where = parse_qs(parts.query).get("device", ["cpu"])[0]
        return RayJudge(where, backend, config=options.get("config"), address=address)
    devices = devices_of(device)
    return Judge(device, backend, **options) if len(devices) == 1 else JudgePool(devices, backend, **options)
