"""What a hostile or broken client sends, byte for byte; as data. Sources: research/reliability.md section 2, RFC 9112 section 11."""

from dataclasses import dataclass
from typing import Final

CHAT: Final = "/openai/v1/chat/completions"
BODY: Final = b'{"model": "synthetic", "messages": []}'
SMUGGLED: Final = b"POST /openai/v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Length: 2\r\n\r\n{}"
SIZED: Final = f"Content-Length: {len(BODY)}"
CHUNKS: Final = "Transfer-Encoding: chunked"
CHUNKED_BODY: Final = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
TLS_CLIENT_HELLO: Final = bytes.fromhex("16030100a50100 00a10303".replace(" ", "")) + bytes(161)
HTTP2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)
AUTHORIZED: Final = "Authorization: Bearer sk-attacker"


def head(line: str, *headers: str, host: str = "Host: p") -> bytes:
    """Nothing is in it but what is given; `host` may be empty."""
    return "\r\n".join([line, *([host] if host else []), *headers, "", ""]).encode("latin-1")


def post(*headers: str, body: bytes = b"", target: str = CHAT, method: str = "POST") -> bytes:
    return head(f"{method} {target} HTTP/1.1", AUTHORIZED, *headers) + body


def sized(*headers: str, target: str = CHAT, method: str = "POST") -> bytes:
    """Whole and well framed: only what is given is wrong with it."""
    return post("Content-Type: application/json", *headers, SIZED, body=BODY, target=target, method=method)


def chunked(body: bytes, *headers: str) -> bytes:
    return post(CHUNKS, *headers, body=body)


@dataclass(frozen=True, slots=True)
class Refused:
    """The raw bytes, and the status and code of the one answer."""

    data: bytes
    status: int = 400
    code: str = "bad_framing"


def target(value: str) -> Refused:
    return Refused(sized(target=value), code="bad_target")


FRAMING: Final = {
    "CL.TE": Refused(post("Content-Length: 6", CHUNKS, body=b"0\r\n\r\nG" + SMUGGLED)),
    "TE.CL": Refused(post(CHUNKS, "Content-Length: 3", body=b"8\r\nSMUGGLED\r\n0\r\n\r\n" + SMUGGLED)),
    "CL.TE with a length of 0": Refused(post("Content-Length: 0", CHUNKS, body=SMUGGLED)),
    "TE twice": Refused(post(CHUNKS, CHUNKS, body=CHUNKED_BODY)),
    "TE xchunked": Refused(post("Transfer-Encoding: xchunked", SIZED, body=BODY)),
    "TE xchunked alone": Refused(post("Transfer-Encoding: xchunked", body=CHUNKED_BODY)),
    "TE chunked, identity": Refused(post("Transfer-Encoding: chunked, identity", body=CHUNKED_BODY)),
    "TE identity": Refused(post("Transfer-Encoding: identity", SIZED, body=BODY)),
    "TE gzip": Refused(post("Transfer-Encoding: gzip", body=BODY)),
    "TE gzip, chunked": Refused(post("Transfer-Encoding: gzip, chunked", body=CHUNKED_BODY)),
    "TE gzip and TE chunked": Refused(post("Transfer-Encoding: gzip", CHUNKS, body=CHUNKED_BODY)),
    "TE chunked, chunked": Refused(post("Transfer-Encoding: chunked, chunked", body=CHUNKED_BODY)),
    "TE quoted": Refused(post('Transfer-Encoding: "chunked"', body=CHUNKED_BODY)),
    "TE with a vertical tab": Refused(post("Transfer-Encoding: \x0bchunked", body=CHUNKED_BODY)),
    "TE empty": Refused(post("Transfer-Encoding:", SIZED, body=BODY)),
    "TE with a space before its colon": Refused(post("Transfer-Encoding : chunked", SIZED, body=BODY)),
    "TE on a folded line": Refused(post("Transfer-Encoding:", " chunked", body=CHUNKED_BODY)),
    "TE behind a bare CR": Refused(post(f"X-A: 1\r{CHUNKS}", SIZED, body=BODY)),
    "TE behind a bare LF": Refused(post(f"X-A: 1\n{CHUNKS}", SIZED, body=BODY)),
    "two lengths": Refused(post("Content-Length: 2", "Content-Length: 3", body=b"{} ")),
    "two equal lengths": Refused(post(SIZED, SIZED, body=BODY)),
    "length 4, 4": Refused(post("Content-Length: 4, 4", body=b"true")),
    "length +4": Refused(post("Content-Length: +4", body=b"true")),
    "length -4": Refused(post("Content-Length: -4", body=b"true")),
    "length 0x4": Refused(post("Content-Length: 0x4", body=b"true")),
    "length 4 4": Refused(post("Content-Length: 4 4", body=b"true")),
    "length 4_0": Refused(post("Content-Length: 4_0", body=b"true" * 10)),
    "length 4.0": Refused(post("Content-Length: 4.0", body=b"true")),
    "length of no digits": Refused(post("Content-Length: four", body=b"true")),
    "length in Arabic digits": Refused(post("Content-Length: \u00b2", body=b"{}")),
    "empty length": Refused(post("Content-Length:", body=b"true")),
    "length above 64 bit": Refused(post("Content-Length: 18446744073709551617", body=b"true")),
    "length of 5,000 digits": Refused(post("Content-Length: " + "9" * 5000, body=b"true")),
    "length above the limit": Refused(post("Content-Length: 999999999999", body=b"true"), 413, "body_too_large"),
    "chunk size 0x4": Refused(chunked(b"0x4\r\ntrue\r\n0\r\n\r\n")),
    "chunk size -4": Refused(chunked(b"-4\r\ntrue\r\n0\r\n\r\n")),
    "chunk size +4": Refused(chunked(b"+4\r\ntrue\r\n0\r\n\r\n")),
    "chunk size with spaces": Refused(chunked(b"4 4\r\ntrue\r\n0\r\n\r\n")),
    "chunk size with a bare LF": Refused(chunked(b"4\ntrue\r\n0\r\n\r\n")),
    "chunk size above 64 bit": Refused(chunked(b"fffffffffffffffff\r\ntrue\r\n0\r\n\r\n")),
    "chunk size above the limit, and silence": Refused(chunked(b"7fffffffffffffff\r\ntrue")),
    "chunk size empty": Refused(chunked(b"\r\ntrue\r\n0\r\n\r\n")),
    "chunk longer than its size": Refused(chunked(b"4\r\ntrue, false\r\n0\r\n\r\n")),
    "chunk that ends in a bare LF": Refused(chunked(b"4\r\ntrue\n0\r\n\r\n")),
    "chunk extension with a bare LF": Refused(chunked(b"4;a=b\ntrue\r\n0\r\n\r\n")),
    "trailer with a bare LF": Refused(chunked(b"4\r\ntrue\r\n0\r\nX-A: 1\n\r\n")),
    "length in a trailer": Refused(chunked(b"4\r\ntrue\r\n0\r\nContent-Length: 9\r\n\r\n")),
    "trailers without end": Refused(chunked(b"4\r\ntrue\r\n0\r\n" + b"X-A: 1\r\n" * 60_000 + b"\r\n")),
}
HEADS: Final = {
    "folded header": Refused(sized("X-A: 1", " 2")),
    "folded first header": Refused(head(f"POST {CHAT} HTTP/1.1", " X-A: 1", SIZED) + BODY),
    "space before the colon": Refused(sized("X-A : 1")),
    "tab before the colon": Refused(sized("X-A\t: 1")),
    "header without a colon": Refused(sized("X-A")),
    "header without a name": Refused(sized(": 1")),
    "space in a name": Refused(sized("X A: 1")),
    "byte above 127 in a name": Refused(sized("X-\xe9: 1")),
    "bare LF as line end": Refused(sized().replace(b"\r\n", b"\n")),
    "bare LF once": Refused(sized("X-A: 1\nX-B: 2")),
    "bare CR in a value": Refused(sized("X-A: 1\rX-B: 2")),
    "bare CR at the end of a line": Refused(sized("X-A: 1\r")),
    "NUL in a value": Refused(sized("X-A: 1\0")),
    "NUL in a name": Refused(sized("X\0A: 1")),
    "control character in a value": Refused(sized("X-A: 1\x01")),
    "DEL in a value": Refused(sized("X-A: 1\x7f")),
    "value that is no UTF-8": Refused(sized("X-A: \xff\xfe")),
    "no Host": Refused(head(f"POST {CHAT} HTTP/1.1", AUTHORIZED, SIZED, host="") + BODY),
    "two Hosts": Refused(sized("Host: evil.example")),
    "two equal Hosts": Refused(sized("Host: p")),
    "two Authorization headers": Refused(sized("authorization: Bearer sk-other")),
    "two keys": Refused(sized("Idempotency-Key: a", "idempotency-key: b")),
    "two Content-Types": Refused(sized("Content-Type: application/x-ndjson")),
    "Sendonce-Accept twice": Refused(sized("Sendonce-Accept: a.1", "sendonce-accept: b.1")),
    "key with a control character": Refused(sized("Idempotency-Key: a\x01b")),
    "key with a tab": Refused(sized("Idempotency-Key: a\tb"), code="bad_key"),
    "key with a space": Refused(sized("Idempotency-Key: a b"), code="bad_key"),
    "key of 256 characters": Refused(sized("Idempotency-Key: " + "k" * 256), code="bad_key"),
    "empty key": Refused(sized("Idempotency-Key:"), code="bad_key"),
    "Connection lists Authorization": Refused(sized("Connection: close, authorization")),
    "Connection lists the key": Refused(sized("Idempotency-Key: listed", "Connection: Idempotency-Key")),
    "Connection lists Content-Encoding": Refused(sized("Content-Encoding: gzip", "Connection: content-encoding")),
    "Connection lists the length": Refused(sized("Connection: content-length, content-type")),
    "257 headers": Refused(sized(*(f"X-{number}: 1" for number in range(257)))),
    "10,000 headers": Refused(sized(*(f"X-{number}: 1" for number in range(10_000)))),
    "header of 66 kB": Refused(sized("X-A: " + "a" * 66_000)),
    "name of 66 kB": Refused(sized("X-" + "A" * 66_000 + ": 1")),
    "headers of 300 kB": Refused(sized(*(f"X-{number}: " + "a" * 60_000 for number in range(5)))),
    "headers that never end": Refused(head(f"POST {CHAT} HTTP/1.1", "X-A: " + "a" * 300_000)[:-4]),
}
REQUEST_LINES: Final = {
    "HTTP/1.0": Refused(sized().replace(b"HTTP/1.1", b"HTTP/1.0")),
    "HTTP/1.0 with chunks": Refused(chunked(CHUNKED_BODY).replace(b"HTTP/1.1", b"HTTP/1.0")),
    "HTTP/1.2": Refused(sized().replace(b"HTTP/1.1", b"HTTP/1.2")),
    "HTTP/2.0": Refused(sized().replace(b"HTTP/1.1", b"HTTP/2.0")),
    "HTTP/0.9": Refused(b"GET /openai/v1/models\r\n\r\n"),
    "HTTP/1.10": Refused(sized().replace(b"HTTP/1.1", b"HTTP/1.10")),
    "http/1.1": Refused(sized().replace(b"HTTP/1.1", b"http/1.1")),
    "HTTP/2 preface": Refused(HTTP2_PREFACE),
    "TLS on the plain port": Refused(TLS_CLIENT_HELLO),
    "SSH": Refused(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "zeros": Refused(bytes(64)),
    "space before the method": Refused(b" " + sized()),
    "request line with a tab": Refused(sized().replace(b"POST ", b"POST\t", 1)),
    "space in the target": Refused(sized(target="/openai/v1/a b")),
    "raw UTF-8 in the target": Refused(sized(target="/openai/v1/\xc3\xa9")),
    "NUL in the target": Refused(sized(target="/openai/v1/\0")),
    "DEL in the target": Refused(sized(target="/openai/v1/\x7f")),
    "target of 20 kB": Refused(sized(target="/openai/v1/" + "a" * 20_000)),
    "absolute form": target("http://evil.example/openai/v1/x"),
    "absolute form of ourselves": target(f"http://p{CHAT}"),
    "authority form": Refused(sized(target="evil.example:443")),
    "user info": Refused(sized(target="@evil.example/openai/v1/x")),
    "asterisk": Refused(head("OPTIONS * HTTP/1.1"), code="bad_target"),
    "two slashes": target("//evil.example/openai/v1/x"),
    "backslash": target("/openai/v1\\x"),
    "backslash at the start": target("/\\evil.example/v1/x"),
    "fragment": target("/openai/v1/x#y"),
    "fragment in the query": target("/openai/v1/x?a=1#y"),
    "empty query": target("/openai/v1/x?"),
    **{
        f"dots: {value}": target(value)
        for value in (
            "/openai/../openai/v1/x",
            "/openai/v1/..",
            "/openai/./v1/x",
            "/openai/v1/.",
            "/..",
            "/openai/v1/%2e%2e/x",
            "/openai/v1/%2E./x",
            "/openai/v1/.%2e/x",
            "/openai/v1/..%2fx",
            "/openai/v1%2F..%2Fx",
            "/openai/v1%2f%2e%2e%2fx",
            "/openai/v1/..%5cx",
            "/openai/v1/..;a=b/x",
            "/openai/v1/%2e%2e;/x",
            "/openai/v1/%2e",
        )
    },
    "other upstream by dots": target("/openai/%2e%2e/anthropic/v1/messages"),
    "encoded name of the upstream": Refused(sized(target="/%6fpenai/v1/x"), 404, "unknown_upstream"),
    "upstream in capitals": Refused(sized(target="/OpenAI/v1/x"), 404, "unknown_upstream"),
    "encoded slash after the upstream": Refused(sized(target="/openai%2fv1/x"), 404, "unknown_upstream"),
    "own prefix": Refused(sized(target="/_sendonce/stop"), code="bad_target"),
    "TRACE": Refused(sized(method="TRACE"), code="bad_target"),
    "CONNECT": Refused(head("CONNECT evil.example:443 HTTP/1.1"), code="bad_target"),
    "CONNECT with a path": Refused(sized(method="CONNECT"), code="bad_target"),
    "PROPFIND": Refused(sized(method="PROPFIND"), code="bad_target"),
    "method in small letters": Refused(sized(method="post")),
    "method of no letters": Refused(sized(method="P(ST")),
    "empty method": Refused(b" " + head(f"{CHAT} HTTP/1.1")),
    "Expect on what is refused": Refused(sized("Expect: 100-continue", target="/openai/../x"), code="bad_target"),
    "Upgrade to WebSocket": Refused(
        head(
            "GET /openai/v1/responses HTTP/1.1",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ),
        426,
        "upgrade_unsupported",
    ),
    "Upgrade to h2c": Refused(
        sized("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"),
        426,
        "upgrade_unsupported",
    ),
    "Upgrade that Connection does not list": Refused(sized("Upgrade: h2c"), 426, "upgrade_unsupported"),
}
REFUSED: Final = FRAMING | HEADS | REQUEST_LINES


@dataclass(frozen=True, slots=True)
class Accepted:
    """Odd, and unambiguous: the raw bytes, and what the provider must get, once. `headers` are those of the oddity."""

    data: bytes
    line: bytes = b"POST /v1/chat/completions HTTP/1.1"
    headers: tuple[bytes, ...] = ()
    body: bytes = BODY
    without: tuple[bytes, ...] = ()  # beginnings of header lines, in lower case, that must not be there


ACCEPTED: Final = {
    "two spaces before the target": Accepted(sized(target=f" {CHAT}")),
    "empty lines before the request line": Accepted(b"\r\n\r\n" + sized()),
    "chunks in capitals": Accepted(post("TRANSFER-ENCODING: Chunked", body=CHUNKED_BODY)),
    "chunk extension": Accepted(chunked(b"4;a=b;c\r\ntrue\r\n0;d\r\n\r\n"), body=b"true"),
    "chunk extension of 300 kB": Accepted(chunked(b"4;" + b"a" * 300_000 + b"\r\ntrue\r\n0\r\n\r\n"), body=b"true"),
    "chunk size with zeros": Accepted(chunked(b"00004\r\ntrue\r\n000\r\n\r\n"), body=b"true"),
    "chunks of one byte": Accepted(chunked(b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n")),
    "trailer that would be a credential": Accepted(
        chunked(b"4\r\ntrue\r\n0\r\nX-Api-Key: trailing\r\n\r\n", "Trailer: X-Api-Key"),
        body=b"true",
        without=(b"x-api-key", b"trailer"),
    ),
    "length with zeros": Accepted(post("Content-Length: 0004", body=b"true"), body=b"true"),
    "body that is a request": Accepted(
        post(f"Content-Length: {len(SMUGGLED)}", body=SMUGGLED),
        headers=(b"Content-Length: %d" % len(SMUGGLED),),
        body=SMUGGLED,
    ),
    "GET with a body": Accepted(sized(method="GET", target="/openai/v1/models"), line=b"GET /v1/models HTTP/1.1"),
    "no Host that is empty": Accepted(sized().replace(b"Host: p", b"Host:"), without=(b"host: p", b"host:\r")),
    "Host of somebody else": Accepted(sized().replace(b"Host: p", b"Host: evil.example"), without=(b"host: evil",)),
    "X-Forwarded-Host": Accepted(sized("X-Forwarded-Host: evil.example"), headers=(b"X-Forwarded-Host: evil.example",)),
    "Connection lists what is not there": Accepted(
        sized("Connection: keep-alive, x-hop"), without=(b"connection", b"x-hop")
    ),
    "hop-by-hop headers": Accepted(
        sized(
            "Keep-Alive: 5", "TE: trailers", "Proxy-Connection: x", "Proxy-Authorization: Basic eA==", "Connection: TE"
        ),
        without=(b"keep-alive", b"te:", b"proxy-"),
    ),
    "Expect of another kind": Accepted(sized("Expect: 200-ok"), without=(b"expect",)),
    "own headers that exist in no contract": Accepted(sized("SENDONCE-Evil: 1"), without=(b"sendonce",)),
    "empty values": Accepted(sized("X-A:", "X-B: "), headers=(b"X-A: ", b"X-B: ")),
    "white space around a value": Accepted(sized("X-A: \t 1 \t "), headers=(b"X-A: 1",)),
    "value in UTF-8": Accepted(sized("X-A: \xc3\xa9"), headers=(b"X-A: \xc3\xa9",)),
    "header without a space": Accepted(sized("X-A:1:2"), headers=(b"X-A: 1:2",)),
    "odd name": Accepted(sized("!#$%&'*+-.^_`|~9: 1"), headers=(b"!#$%&'*+-.^_`|~9: 1",)),
    "repeated header": Accepted(sized("X-A: 1", "X-B: 2", "X-A: 3"), headers=(b"X-A: 1", b"X-B: 2", b"X-A: 3")),
    "two API keys, which are one caller together": Accepted(
        sized("X-Api-Key: a", "X-Api-Key: b"), headers=(b"X-Api-Key: a", b"X-Api-Key: b")
    ),
    "key in UTF-8": Accepted(sized("Idempotency-Key: \xc3\xa9"), headers=(b"Idempotency-Key: \xc3\xa9",)),
    "200 headers": Accepted(
        sized(*(f"X-{number}: 1" for number in range(200))), headers=tuple(b"X-%d: 1" % number for number in range(200))
    ),
    "header of 60 kB": Accepted(sized("X-A: " + "a" * 60_000), headers=(b"X-A: " + b"a" * 60_000,)),
    **{
        f"target {path[:40]}": Accepted(sized(target=f"/openai{path}"), line=f"POST {path} HTTP/1.1".encode())
        for path in (
            "/v1/...",
            "/v1/.hidden/..x/x..",
            "/v1//x",
            "/v1/@evil.example/x",
            "/v1/evil.example:443",
            "/v1/http://evil.example/x",
            "/v1/a%2Fb%00%zz%",
            "/v1/x?a=../..&b=%2e%2e/&c=//&d=\x7b".replace("\x7b", "{"),
            "/v1/x?" + "q" * 10_000,
        )
    },
}
