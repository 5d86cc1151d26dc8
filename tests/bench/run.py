"""`python -m tests.bench.run [--rounds N] [--seconds S] [--json] [--dir D]`: what recording costs, as ratios.

Direct to a lean provider, a bare aiohttp pass-through and sendonce take turns under the same load; the order turns with each
round. Only ratios to bare within one round mean anything across machines. docs/benchmarks.md says how to read the figures.
"""

import argparse
import http.client
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tests.harness.processes import ROOT, Process

PATH: Final = "/v1/chat/completions"
CONCURRENCIES: Final = (1, 8, 32, 128)
STREAMS: Final = 32
STREAM_SECONDS_MIN: Final = 2.5  # a stream takes about one second: two whole ones on each connection
WARM_UP_S: Final = 0.5
FSYNC_PROBES: Final = 200
CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Target:
    """Who answers the load. `pid` for its CPU time."""

    name: str
    port: int
    pid: int
    path: str = PATH


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of load at one concurrency."""

    kind: str
    concurrency: int

    @property
    def label(self) -> str:
        return f"{self.kind} c={self.concurrency}"


ROWS: Final = (*(Row("json", concurrency) for concurrency in CONCURRENCIES), Row("sse", STREAMS))


@contextmanager
def targets(directory: Path) -> Iterator[tuple[Target, ...]]:
    """The provider and both proxies, each a process of its own."""
    with ExitStack() as stack:

        def start(*arguments: str) -> Process:
            process = Process(["-m", *arguments], r"on http://127\.0\.0\.1:(\d+)")
            stack.callback(process.close)
            return process

        provider = start("tests.bench.provider")
        url = f"http://127.0.0.1:{provider.port}"
        bare = start("tests.bench.bare", url)
        state_dir = str(directory / "state")
        sendonce = start("proxy", "serve", "--port", "0", "--state-dir", state_dir, "--upstream", f"openai={url}")
        yield (
            Target("direct", provider.port, provider.child.pid),
            Target("bare", bare.port, bare.child.pid),
            Target("sendonce", sendonce.port, sendonce.child.pid, "/openai" + PATH),
        )


def fdatasync_p50_us(directory: Path) -> float:
    """Append and fdatasync of 512 bytes in the state dir's file system: the floor under each durable step."""
    times = []
    with (directory / "probe").open("ab", buffering=0) as file:
        for _ in range(FSYNC_PROBES):
            started = time.perf_counter()
            file.write(bytes(512))
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - started)
    return median(times) * 1e6


def cpu_s(pid: int) -> float:
    """User and system time of all threads, proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def posts_seen(provider: Target) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", provider.port, timeout=10)
    try:
        connection.request("GET", "/count")
        return int(connection.getresponse().read())
    finally:
        connection.close()


def measure(target: Target, provider: Target, row: Row, seconds: float) -> dict[str, Any]:
    """One turn of one target. Raises when an answer was wrong, or was not the provider's own."""
    seen, burned = posts_seen(provider), cpu_s(target.pid)
    arguments = [str(target.port), target.path, str(row.concurrency), str(seconds), row.kind]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.load", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"The load generator failed: {done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    forwarded = posts_seen(provider) - seen
    if result["errors"] or forwarded != result["sent"]:
        raise SystemExit(
            f"{target.name}, {row.label}: {result['errors']} errors, {result['sent']} sent, {forwarded} reached the"
            " provider. The figures would mean nothing."
        )
    return result | {"cpu_us": (cpu_s(target.pid) - burned) / result["sent"] * 1e6}


def run(rounds: int, seconds: float, directory: Path, progress: Console) -> dict[str, Any]:
    """All rounds. A value of the document is a list with one entry a round."""
    measured: dict[str, dict[str, list[dict[str, Any]]]] = {row.label: {} for row in ROWS}
    with targets(directory) as all_targets, progress.status("warming up") as line:
        provider = all_targets[0]
        for target in all_targets:
            measure(target, provider, Row("json", 8), WARM_UP_S)
        for number in range(rounds):
            turn = number % len(all_targets)
            for row in ROWS:
                for target in (*all_targets[turn:], *all_targets[:turn]):
                    line.update(f"round {number + 1} of {rounds}: {row.label}, {target.name}")
                    lasting = max(seconds, STREAM_SECONDS_MIN) if row.kind == "sse" else seconds
                    result = measure(target, provider, row, lasting)
                    measured[row.label].setdefault(target.name, []).append(result)
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load_average": os.getloadavg(),
        "rounds": rounds,
        "seconds": seconds,
        "fdatasync_p50_us": fdatasync_p50_us(directory),
        "rows": measured,
    }


def ratios(results: dict[str, list[dict[str, Any]]], name: str, figure: str) -> str:
    """Median (min-max) over the rounds of a figure's ratio to bare in the same round."""
    values = [own[figure] / bare[figure] for own, bare in zip(results[name], results["bare"], strict=True)]
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"  # hyphen: copies well into a table


def table(console: Console, document: dict[str, Any]) -> None:
    drawn = Table(box=None, pad_edge=False)
    for heading in ("load", "target", "x bare", "requests/s", "p50 ms", "p99 ms", "CPU us", "event delay ms", "x bare"):
        drawn.add_column(heading, justify="left" if heading in {"load", "target"} else "right", no_wrap=True)
    for label, results in document["rows"].items():
        for name, rounds in results.items():
            drawn.add_row(label, name, *_cells(results, name, rounds))
    console.print(drawn)
    console.print(
        f"{document['machine']}, {document['at']}; append+fdatasync p50 {document['fdatasync_p50_us']:.0f} us; "
        f"median of {document['rounds']} rounds of {document['seconds']:g} s (lowest-highest round)",
        markup=False,
    )


def _cells(results: dict[str, list[dict[str, Any]]], name: str, rounds: list[dict[str, Any]]) -> list[str]:
    def middle(figure: str, scale: float = 1) -> str:
        return f"{median(result[figure] for result in rounds) / scale:.{2 if scale > 1 else 0}f}"

    cells = [ratios(results, name, "rps"), middle("rps"), middle("latency_p50_us", 1e3), middle("latency_p99_us", 1e3)]
    cells.append(middle("cpu_us"))
    if "event_delay_p50_us" not in rounds[0]:
        return cells
    return [*cells, middle("event_delay_p50_us", 1e3), ratios(results, name, "event_delay_p50_us")]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.run", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="each target has one turn a round (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2, help="of load a turn (default: %(default)s)")
    parser.add_argument("--dir", type=Path, help="where the state dir is made; its disk is what is measured")
    parser.add_argument("--json", action="store_true", help="every figure of every round, on stdout")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sendonce-bench-", dir=arguments.dir) as directory:
        document = run(arguments.rounds, arguments.seconds, Path(directory), Console(stderr=True))
    if arguments.json:
        print(json.dumps(document, indent=2))
    else:
        table(Console(width=max(130, Console().width)), document)


if __name__ == "__main__":
    main()
