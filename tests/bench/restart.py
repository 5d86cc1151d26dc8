"""`python -m tests.bench.restart [--calls N] [--kills K] [--dir D] [--json]`: from SIGKILL of the serving process to the next served call.

N answered calls are on record, all of them in the last epoch when the first start looks at it. Each time a new connection asks
at once, waits in the backlog, and is served through the synthetic provider; what is measured ends with the answer's last byte.
"""

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.bench.run import fdatasync_p50_us
from tests.harness.processes import ROOT, Rig, chat, provider_in, until

SOUND_LIFE_S: Final = 1.2  # between two kills: a life below one second counts as a start that failed, and is waited for
ASKS_LIMIT: Final = 50


def serve_one(rig: Rig, number: int) -> int:
    """A model call on a new connection, asked again where it was cut: how often. Its key is its own."""
    for asked in range(1, ASKS_LIMIT):
        try:
            answer = rig.chat(chat(text=f"call {number}"), {"Idempotency-Key": f"bench-{os.getpid()}-{number}"})
        except (OSError, http.client.HTTPException):  # accepted by the process in its last moment
            continue
        if answer.status != 200:
            raise SystemExit(
                f"Call {number} was answered {answer.status}: {answer.body!r}. The figures would mean nothing."
            )
        return asked
    raise SystemExit(f"Call {number} was not served.")


def past(state_dir: Path, calls: int) -> float:
    began = time.monotonic()
    arguments = [sys.executable, "-m", "tests.harness.long_past", str(state_dir), str(calls)]
    subprocess.run(arguments, cwd=ROOT, check=True)
    return time.monotonic() - began


def run(directory: Path, calls: int, kills: int) -> dict[str, Any]:
    with provider_in(directory) as rig:
        rig.supervised = True
        written_s = past(rig.state_dir, calls)
        began = time.monotonic()
        rig.start()
        serve_one(rig, 0)
        cold_s, times_s, cut = time.monotonic() - began, [], 0
        for number in range(1, kills + 1):
            time.sleep(SOUND_LIFE_S)
            pid = rig.serving_pid
            killed = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            cut += serve_one(rig, number) - 1
            times_s.append(time.monotonic() - killed)
            until(lambda pid=pid: rig.serving_pid != pid)  # type: ignore[misc]
        recorded = rig.status()["calls"]
        assert rig.proxy_process is not None
        code = rig.proxy_process.stop()
        receipts = len(rig.provider_receipts())
        probe_us = fdatasync_p50_us(directory)
    if code or receipts != kills + 1:
        raise SystemExit(
            f"Exit code {code}, {receipts} provider receipts for {kills + 1} calls: the figures mean nothing."
        )
    return {
        "calls": recorded,
        "written_s": round(written_s, 1),
        "cold_start_s": round(cold_s, 3),
        "kills": kills,
        "asked_again": cut,
        "median_s": round(median(times_s), 3),
        "max_s": round(max(times_s), 3),
        "times_s": [round(each, 3) for each in times_s],
        "fdatasync_p50_us": round(probe_us),
        "load_average": os.getloadavg(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.restart", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--calls", type=int, default=100_000, help="on record (default: %(default)s; some three minutes)"
    )
    parser.add_argument("--kills", type=int, default=30, help="(default: %(default)s)")
    parser.add_argument("--dir", type=Path, help="where the state dir is made: 650 MB for the default")
    parser.add_argument("--json", action="store_true", help="every figure, on stdout")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sendonce-restart-", dir=arguments.dir) as directory:
        document = run(Path(directory), arguments.calls, arguments.kills)
    if arguments.json:
        print(json.dumps(document, indent=2))
        return
    print(
        f"SIGKILL to the next served call, {document['calls']} calls on record, {document['kills']} kills: "
        f"median {document['median_s']:.3f} s, maximum {document['max_s']:.3f} s; asked again {document['asked_again']} times. "
        f"Cold start over an epoch of all of them: {document['cold_start_s']:.3f} s."
    )


if __name__ == "__main__":
    main()
