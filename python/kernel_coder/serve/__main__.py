"""``kernel-coder serve [--host 127.0.0.1] [--port 8400] [--device cuda:0] [--backend triton] [--FIELD VALUE ...]``

Starts the judge and serves it over HTTP. Every field of the judge's configuration is a flag. If the environment
variable KERNEL_CODER_TOKEN holds a token, clients must send it; without a token the service listens only on a loopback
address.
"""

from __future__ import annotations

import ipaddress
import os
import sys

from kernel_coder.judge.config import JudgeConfig
from kernel_coder.run.extras import require_extra
from kernel_coder.run.flags import FlagParser, UsageError, add_flags, end, read_flags

TOKEN = "KERNEL_CODER_TOKEN"
EXIT_MISTAKE = 2


def parser() -> FlagParser:
    """Return the command's flags."""
    made = FlagParser(prog="kernel-coder serve", description=__doc__)
    made.add_argument("--host", default="127.0.0.1", help="address to listen on; others than loopback need a token")
    made.add_argument("--port", type=int, default=8400, help="port to listen on; 0: any free one (default 8400)")
    made.add_argument("--device", default="cpu", help="cpu, cuda, cuda:N, several such as cuda:0,cuda:1, or ray://...")
    made.add_argument("--backend", help="language of the candidates if a request names none")
    made.add_argument("--max-queued", type=int, default=1000, help="candidates that may wait; one more gets 429")
    made.add_argument("--max-body-bytes", type=int, default=16 << 20, help="largest request body, in bytes")
    made.add_argument("--drain-s", type=float, default=30.0, help="seconds that a shutdown waits for open requests")
    add_flags(made, JudgeConfig)
    return made


def main(arguments: list[str] | None = None) -> int:
    """Runs the service until SIGTERM or SIGINT and returns the exit code."""
    try:
        options = parser().parse(arguments)
        config = read_flags(options, JudgeConfig)
        token = os.environ.get(TOKEN, "").strip() or None
        if token is None and not is_loopback(options.host):
            raise UsageError(
                f"--host {options.host} can be reached from other machines: set {TOKEN} to a secret, "
                "or listen on 127.0.0.1"
            )
        return serve(options, config, token)
    except UsageError as error:
        return end(error, EXIT_MISTAKE)


def serve(options: object, config: JudgeConfig, token: str | None) -> int:
    """Opens the judge, serves it, closes it."""
    require_extra("serve", "kernel-coder serve")
    import uvicorn

    from kernel_coder.judge.sandbox.sandbox import SandboxError
    from kernel_coder.judge.supervisor.open import open_judge
    from kernel_coder.serve.app import create_app
    from kernel_coder.serve.guard import HeaderTimeoutProtocol
    from kernel_coder.serve.service import ServiceLimits

    given = vars(options)
    limits = ServiceLimits(
        max_queued=given["max_queued"], max_body_bytes=given["max_body_bytes"], drain_s=given["drain_s"]
    )
    try:
        judge = open_judge(given["device"], given["backend"], config=config)
        judge.__enter__()
    except (ValueError, SandboxError) as error:
        raise UsageError(str(error)) from None
    with judge:
        app = create_app(judge, token=token, limits=limits)
        settings = uvicorn.Config(
            app,
            host=given["host"],
            port=given["port"],
            http=HeaderTimeoutProtocol,
            log_level="warning",
            timeout_keep_alive=15,
            timeout_graceful_shutdown=round(limits.drain_s) + 5,
            limit_concurrency=4096,
            server_header=False,
        )
        server = uvicorn.Server(settings)
        print(
            f"judging on {judge.device}; http://{given['host']}:{given['port']}/docs describes the routes; "
            f"{'a token is asked for' if token else 'no token is asked for'}",
            file=sys.stderr,
            flush=True,
        )
        server.run()
    return 0


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


if __name__ == "__main__":
    sys.exit(main())
