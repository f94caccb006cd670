"""Chromium without a window, driven over a pipe: the pages of reports as a reader sees them."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

PROGRAMS = ("chromium", "chromium-headless-shell", "google-chrome", "chrome")

LAYOUT = """
(() => {
  const width = document.documentElement.clientWidth;
  const inScroller = element => {
    for (let e = element; e && e !== document.body; e = e.parentElement)
      if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(e).overflowX)) return true;
    return false;
  };
  const outside = [...document.body.querySelectorAll('*')]
    .filter(e => e.getClientRects().length && e.getBoundingClientRect().right > width + 1 && !inScroller(e))
    .map(e => `${e.tagName.toLowerCase()} ${(e.textContent || '').trim().slice(0, 40)}`);
  const style = getComputedStyle(document.body);
  return {scroll: document.documentElement.scrollWidth, width, outside: outside.slice(0, 5),
          color: style.color, background: getComputedStyle(document.documentElement).backgroundColor};
})()
"""
"""Measures a page: its width with all that sticks out, the width of the window, and the first elements that stick out
and are not inside a box that scrolls."""


def program() -> str | None:
    """The path of an installed browser; None if there is none."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Browser:
    """A running browser with one page; a context manager.

    It speaks the DevTools protocol over two pipes: JSON messages that end with a zero byte.
    """

    def __init__(self, path: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        command = [path, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += ["--remote-debugging-pipe", "--disable-dev-shm-usage", "--no-first-run"]
        command += [f"--user-data-dir={self._folder.name}", "about:blank"]

        def arrange() -> None:  # the browser reads descriptor 3 and writes to 4
            read, write = os.dup(to_browser), os.dup(from_browser)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self._process = subprocess.Popen(
            command,
            preexec_fn=arrange,
            close_fds=False,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._number = 0
        self._buffer = b""
        targets = self._ask("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self._ask("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        self._ask("Page.enable")

    _session: str | None = None

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        os.close(self._out)
        os.close(self._in)
        self._folder.cleanup()

    def _end(self) -> None:
        """Ends every process of the browser.

        A killed browser leaves helpers behind for a moment. They still write into its folder while that is removed.
        So the browser is asked to close first, and then its process group is killed.
        """
        try:
            self._session = None
            self._ask("Browser.close")
            self._process.wait(timeout=10)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            pass  # the browser hangs, or ended before it answered
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def open(self, page: Path, width: int, scheme: str) -> None:
        """Shows a file in a window of that width, in CSS pixels, in the colour scheme ``light`` or ``dark``."""
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._ask("Page.navigate", url=page.resolve().as_uri())
        self._wait("Page.loadEventFired")

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self._ask("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Writes a picture of the whole page as PNG."""
        answer = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _ask(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _wait(self, event: str) -> None:
        while self._read().get("method") != event:
            pass

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._in, 1 << 16)
            if not data:
                raise RuntimeError("the browser ended")
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(text))
