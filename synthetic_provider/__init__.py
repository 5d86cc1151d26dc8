"""A separate process that imitates model providers, so that tests can count effects on the provider's side.

    python -m synthetic_provider --port N --receipts FILE [--dedupe] [--host H]

provider receipt  one fsynced line of JSON in FILE for each request, written before any hold or answer (receipts.py)
n                 the receipt's number; the answer names it in its text and in the header `x-synthetic-receipt`
behaviour         what the request's model name asks for, `synthetic/hold=5,cut=3` (behaviour.py); the
                  name stands in the JSON body, in the form's field `model`, or in a Gemini path (formats.py)
fault             the part of a behaviour that `times=N` limits to the first N receipts of one body
format            how one endpoint of one provider writes answers, streams and errors (wire.py; the table: formats.py)
intake            a request's body while it arrives: hashed, its fields read, its files only counted (intake.py)
ask               one whole request as a format sees it
mark              stands for filler of any size until it is sent (filler.py)
script            the steps of one answer, all bytes of it included: send, wait, end (script.py, pure)
server            reads requests byte by byte and plays scripts (request.py, server.py)

It imports nothing of `proxy` or `ledger`: a provider that shared the proxy's view of the wire would confirm its errors.
"""
