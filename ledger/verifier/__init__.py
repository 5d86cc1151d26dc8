"""The independent auditor of a bundle: `python -m ledger.verifier DIR [--json]`.

It is written from `ledger/FORMAT.md` alone and shares no code with what it checks: it imports the standard library and
`blake3`, nothing of ours. It trusts no byte of a bundle, and it never writes.

**claim**: a sentence about the whole bundle that is checked and counted. **check**: the function of a claim that looks
at one record; a **sweep** looks at everything once the events are read. **finding**: a claim broken, by a name of its own,
with the first **places** (call id, seq, receipt number, path). **note**: worth saying, but no fault. **verdict**: the worst
kind of finding, and the exit code. **ledger**: here, what the events read so far tell, folded. **link**: the chain value of
an event. **said**: what the program told people (inspections, refusals), checked against the events at its head.
"""

from ledger.verifier.audit import verify
from ledger.verifier.report import Finding, Report, Verdict, as_json, render

__all__ = ["Finding", "Report", "Verdict", "as_json", "render", "verify"]
