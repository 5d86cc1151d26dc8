"""What can go wrong, by who must act. The message is a sentence; each docstring says the remedy."""


class LedgerError(Exception):
    """Base of everything the ledger raises on purpose."""


class ConflictError(LedgerError):
    """Somebody else's append was first. The caller reads again and decides again."""


class ClaimLostError(ConflictError):
    """The call was settled, superseded or abandoned before its attempt could start. Nothing was sent; decide again."""


class PassClosedError(ClaimLostError):
    """The pass of a run that was given the call is not its newest any more. Nothing was sent; the newer pass may have it sent."""


class NoRoomError(LedgerError):
    """The disk has no room for so large a body. Nothing was written but perhaps some of its chunks; the caller keeps less."""


class IllegalTransitionError(LedgerError):
    """The event may not follow what is recorded. Nothing was written. A programmer or an operator's stale view is at fault."""


class UnrecordableEventError(LedgerError):
    """A value of the event does not fit a record: an integer beyond 64 bits, a lone surrogate. Nothing was written; whoever
    built the event bounds it.
    """


class PoisonedError(LedgerError):
    """A commit or fsync failed or was interrupted, so what is on disk is unknown. Stop admitting, exit 70, recover at start."""


class StartRefusedError(LedgerError):
    """The process must not start. An operator acts; `exit_code` is the process's."""

    exit_code = 4


class StateDirError(StartRefusedError):
    """Locked by another process, too open, somebody else's, or of a format this version cannot read."""


class WitnessesDisagreeError(StartRefusedError):
    """Ledger and receipt log contradict each other, or the ledger file is a copy. `sendonce recover …` puts it on record."""

    exit_code = 5


class NothingToAcceptError(StartRefusedError):
    """An acceptance was given although the witnesses agree. Nothing was recorded: it would cost proofs for nothing."""

    exit_code = 6


class UnreadableRecordError(LedgerError):
    """A stored record, receipt or body is not what its digest or its schema says. `sendonce doctor` shows where."""
