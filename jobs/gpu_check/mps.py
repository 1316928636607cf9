"""A command under a Multi-Process Service of its own: ``mps.py CONTROL COMMAND...``, where CONTROL is ``nvidia-cuda-mps-control``.

The service has its pipes and logs in a new folder, so that no other is met, and quits when the command has ended. No setting of a GPU is
changed. What the service has logged is printed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

_LIMIT_S = 10  # of the service, to start and to quit
_LOG_LINES = 20


def main(control: str, command: list[str]) -> int:
    """Start the service, run the command, let the service quit, and return the command's status."""
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for place in places.values():
            Path(place).mkdir()
        environment = os.environ | places
        try:
            subprocess.run([control, "-d"], env=environment, check=True, timeout=_LIMIT_S)
            status = subprocess.run(command, env=environment, check=False).returncode
        finally:
            for order in ("get_server_list", "quit"):
                tell(control, order, environment)
            for log in Path(f"{folder}/log").glob("*.log"):
                print(
                    f"-- {log.name}",
                    *log.read_text(errors="replace").splitlines()[-_LOG_LINES:],
                    sep="\n",
                    flush=True,
                )
    return status if status >= 0 else 128 - status


def tell(control: str, order: str, environment: dict[str, str]) -> None:
    """Give the service an order, and print what it answers."""
    try:
        told = subprocess.run(
            [control],
            input=f"{order}\n",
            env=environment,
            text=True,
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
        print(f"-- {order}: {told.stdout.strip()} {told.stderr.strip()}", flush=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"-- {order}: {error}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
