"""How an answer ended: by its framing and by its own terminal evidence. One rule for live and for salvaged answers (I13). Pure."""

from typing import Final, Literal

from proxy.dialects.base import TerminalEvidence

COMPLETE: Final = "complete"
UNPROVEN: Final = "unproven"  # delimited by the close alone, and nobody knows what its end looks like
NO_EVIDENCE: Final = "no_terminal_evidence"

Framing = Literal["none", "length", "chunked", "close"]


def ended_by(framing: Framing, evidence: TerminalEvidence, *, framing_ended: bool) -> str:
    """`framing_ended`: the last byte of framing came. After a crash only a declared length can still show that."""
    if framing == "length" and not framing_ended:
        return NO_EVIDENCE
    match evidence:
        case TerminalEvidence.PROVEN:
            return COMPLETE
        case TerminalEvidence.LACKING:
            return NO_EVIDENCE
        case TerminalEvidence.NONE_KNOWN if framing_ended:
            return UNPROVEN if framing == "close" else COMPLETE
        case TerminalEvidence.NONE_KNOWN:
            return NO_EVIDENCE


def is_whole(ended: str) -> bool:
    return ended != NO_EVIDENCE
