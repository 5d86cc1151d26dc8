"""Bodies that commands look at: whole, if they are kept and not too large to be looked at."""

from contextlib import aclosing

from ledger.errors import UnreadableRecordError
from ledger.events import Body, Pairs
from ledger.reader import WHOLE, Reader
from proxy.audit.asking import Asking, asking
from proxy.codings import UndecodableError, decoded
from proxy.manifest import as_headers
from proxy.preserve import PARSED_LIMIT_BYTES


async def kept(reader: Reader, body: Body | None, part: slice = WHOLE) -> bytes | None:
    """None where it was erased or never kept, is damaged, which `doctor` names, or is larger than anybody reads whole."""
    if body is None or not body.kept or (part == WHOLE and body.size > PARSED_LIMIT_BYTES):
        return None
    try:
        async with aclosing(reader.body(body.digest, part)) as pieces:
            return b"".join([piece async for piece in pieces])
    except UnreadableRecordError:
        return None


async def asking_of(reader: Reader, body: Body | None, headers: Pairs) -> Asking | None:
    """What a recorded request asked for; None where it cannot be read."""
    data = await kept(reader, body)
    try:
        return None if data is None else asking(decoded(as_headers(headers), data))
    except UndecodableError:
        return None
