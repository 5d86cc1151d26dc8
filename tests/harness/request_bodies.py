"""Request bodies made at once, for tests of what reads them."""

import tempfile
from pathlib import Path

from proxy.request_body import Memory, RequestBody


def body_of(data: bytes, memory: Memory | None = None) -> RequestBody:
    body = RequestBody(Path(tempfile.gettempdir()), memory or Memory())
    body.append(data)
    return body
