"""A headless Chromium whose mouse a test moves, by its DevTools protocol over pipes."""

import json
import os
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

_FLAGS = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --window-size=1400,900 --remote-debugging-pipe"


class Browser:
    """A page that is open; to be used in a ``with`` statement. ``profile``: an empty folder."""

    def __init__(self, page: str, profile: Path, limit_s: float) -> None:
        (theirs, to), (back, answers) = os.pipe(), os.pipe()
        start = f'exec chromium {_FLAGS} --user-data-dir="$0" 3<&{theirs} 4>&{answers}'
        self._process = subprocess.Popen(
            ["bash", "-c", start, str(profile)], pass_fds=(theirs, answers), stderr=subprocess.DEVNULL
        )
        os.close(theirs)
        os.close(answers)
        self._to, self._back, self._number, self._session = (
            os.fdopen(to, "wb", 0),
            os.fdopen(back, "rb"),
            0,
            dict[str, str](),
        )
        self._limit_s = limit_s
        target = self._ask("Target.createTarget", url=page)["targetId"]
        self._session = {
            "sessionId": self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        }

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._to.close()
        self._back.close()

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        told = {"id": self._number, "method": method, "params": parameters, **self._session}
        self._to.write(json.dumps(told).encode() + b"\0")
        answer = b""
        while True:
            letter = self._back.read(1)
            assert letter, f"chromium has ended before it answered {method}"
            if letter != b"\0":
                answer += letter
                continue
            found = json.loads(answer)
            if found.get("id") == self._number:
                assert "result" in found, found
                result: dict[str, Any] = found["result"]
                return result
            answer = b""

    def value(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        return self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)[
            "result"
        ].get("value")

    def wait(self, script: str) -> None:
        """Wait until an expression in the page is true."""
        end = time.monotonic() + self._limit_s
        while not self.value(script):
            assert time.monotonic() < end, f"{script} is not true after {self._limit_s} s"
            time.sleep(0.05)

    def mouse(self, kind: str, at: tuple[float, float], **more: Any) -> None:
        """Send an event of the mouse, and wait until the page has been drawn since."""
        self._ask("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], **more)
        self.value(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
        )
