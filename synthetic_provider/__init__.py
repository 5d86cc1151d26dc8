"""A separate process that imitates model providers, so that tests can count effects on the provider's side.

    python -m synthetic_provider --port N --receipts FILE [--dedupe] [--count-errors] [--host H]

provider receipt  one fsynced line of JSON in FILE for each request, written before any hold or answer (receipts.py);
                  `generates` tells the requests that generate, or make a job that will, from look-ups and the rest
n                 the receipt's number; the answer names it in its text and in the header `x-synthetic-receipt`
usage record      one fsynced line of JSON in FILE.usage when a generation ends, before the end of its answer is sent
                  (usage.py): tokens, whether they are billed, and how it ended
behaviour         what the request's model name asks for, `synthetic/hold=5,cut=3` (behaviour.py); the
                  name stands in the JSON body, in the form's field `model`, or in a Gemini path (formats.py)
fault             the part of a behaviour that `times=N` limits to the first N receipts of one body
format            how one endpoint of one provider writes answers, streams and errors (wire.py; the table: formats.py)
intake            a request's body while it arrives: hashed, its fields read, its files only counted (intake.py)
ask               one whole request as a format sees it
mark              of text: stands for filler of any size until it is sent (filler.py);
                  of a script: where its generation begins, is, and how it ends (outcomes.py)
script            the steps of one answer, all bytes of it included: send, wait, end (script.py, pure)
generation        what an endpoint that generates does while its script is played: aborted with its connection or going
                  on without it (generation.py)
background        a generation of OpenAI Responses that does not depend on its connection
stored object     what can be looked up of an ended generation or job; in memory, gone with the process (stored.py)
look-up, export   a request about stored objects, or about usage records added up (lookups.py has the table of both;
                  lookups_wire.py, exports.py, exports_anthropic.py)
server            reads requests byte by byte and plays scripts (request.py, server.py, playing.py, client.py)

It imports nothing of `proxy` or `ledger`: a provider that shared the proxy's view of the wire would confirm its errors.
"""
