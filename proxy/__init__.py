"""Decides and forwards. One request walks through few rooms, in one direction; sending happens in one place.

front door   guard, routing, own endpoints, body, safe requests   front, target, headers
call request what admission decides on and the ledger records     manifest, keys, clients, endpoints, dialects/
admission    the table: forward, attach, replay, refuse, wait     admission, decisions
ingress      the one `match` over that decision                   ingress
forwarder    claim -> started -> bytes -> observed -> release     forwarder, upstream
recording    an answer as it arrives; readers from byte 0; hold   inflight, sse, codings
replayer     stored bytes -> client                               replayer
interpreter  preserved bytes -> outcome, usage, effect            interpreter, effects, endings
liveness     what this process knows beyond the ledger            liveness
refusal      an own answer that changes nothing                   refusals
reconcile    leaving unknown by evidence or decision              reconcile/, control
wiring       builds one running proxy, takes it down              wiring, services, server
command line reads, decisions, tables                             cli, inspection, views, tables
"""
