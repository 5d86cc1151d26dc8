"""Moments as people write them on a command line: one reading, one sentence for what is none."""

from datetime import UTC, datetime


class BadMomentError(Exception):
    """It is no moment, or not one that can be meant. Exit code 2."""


def moment_ms(text: str, option: str) -> int:
    """Milliseconds since 1970 of an ISO date or time; without a zone it is UTC. Raises BadMomentError."""
    try:
        moment = datetime.fromisoformat(text)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise BadMomentError(
            f"{option} {text!r} is no date. Give one like 2026-10-31 or 2026-10-31T12:00+02:00; without a zone it is UTC."
        ) from error
