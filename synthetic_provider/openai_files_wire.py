"""OpenAI files, uploads, audio and moderations, as the API reference and the types of openai 3.57 have them. Pure.

Files and transcriptions come as multipart forms. Where the API knows no `model` (files, uploads) a test may send one
all the same, to ask for a behaviour.
"""

from collections.abc import Mapping

from synthetic_provider.openai_wire import error
from synthetic_provider.outcomes import Tokens
from synthetic_provider.wire import (
    Ask,
    Format,
    JsonObject,
    Plain,
    Stream,
    content_chunks,
    content_text,
    counted,
    event,
    provider_id,
    words,
)

UPLOAD_LIFE_S = 3600
AUDIO_MARK = b"\xff\xf3\xc4\xc4"  # an MPEG frame's first bytes: no UTF-8, so whoever takes audio for text will notice

_AUDIO_TYPES: Mapping[str, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
_CATEGORIES = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)


def files(ask: Ask) -> JsonObject:
    name, size = next(((file.filename, file.size_bytes) for file in ask.files if file.field == "file"), ("", 0))
    return {
        "id": provider_id("file-", ask),
        "object": "file",
        "bytes": size,
        "created_at": int(ask.at.timestamp()),
        "expires_at": None,
        "filename": name,
        "purpose": ask.body.get("purpose"),
        "status": "processed",
    }


def uploads(ask: Ask) -> JsonObject:
    at = int(ask.at.timestamp())
    return {
        "id": provider_id("upload_", ask),
        "object": "upload",
        "bytes": ask.body.get("bytes"),
        "created_at": at,
        "expires_at": at + UPLOAD_LIFE_S,
        "filename": ask.body.get("filename"),
        "purpose": ask.body.get("purpose"),
        "status": "pending",
        "file": None,
    }


def transcription_tokens(ask: Ask) -> Tokens:
    return counted(ask, sum(file.size_bytes for file in ask.files) + words(ask.body.get("prompt")))


def speech_tokens(ask: Ask) -> Tokens:
    return counted(ask, words(ask.body.get("input")))


def _transcription_usage(ask: Ask) -> JsonObject:
    """The sound is one token for each of its bytes: tests can count that by hand."""
    count, prompt = transcription_tokens(ask), words(ask.body.get("prompt"))
    usage = {
        "type": "tokens",
        "input_tokens": count.taken,
        "input_token_details": {"audio_tokens": max(0, count.taken - prompt), "text_tokens": min(prompt, count.taken)},
        "output_tokens": count.made,
        "total_tokens": count.taken + count.made,
    }
    return {"usage": usage} if ask.behaviour.usage else {}


def transcriptions(ask: Ask) -> JsonObject | Plain:
    if ask.body.get("response_format") == "text":
        return Plain("text/plain; charset=utf-8", content_text(ask).encode() + b"\n")
    return {"text": content_text(ask), **_transcription_usage(ask)}


def transcriptions_stream(ask: Ask) -> Stream:
    done = {"type": "transcript.text.done", "text": content_text(ask), **_transcription_usage(ask)}
    failure = error(ask, 500, f"receipt {ask.receipt}: the in-band error that error_after asked for")
    return Stream(
        opening=b"",
        chunks=(event({"type": "transcript.text.delta", "delta": piece}) for piece in content_chunks(ask)),
        ending=event(done),
        error=event(failure),
    )


def speech(ask: Ask) -> Plain:
    asked = ask.body.get("response_format")
    media_type = _AUDIO_TYPES.get(asked if isinstance(asked, str) else "mp3", "audio/mpeg")
    return Plain(media_type, AUDIO_MARK + content_text(ask, len(AUDIO_MARK)).encode())


def moderations(ask: Ask) -> JsonObject:
    asked = ask.body.get("input")
    texts = asked if isinstance(asked, list) and all(isinstance(text, str) for text in asked) else [asked]
    result = {
        "flagged": False,
        "categories": dict.fromkeys(_CATEGORIES, False),
        "category_scores": dict.fromkeys(_CATEGORIES, 0.0),
        "category_applied_input_types": {name: ["text"] for name in _CATEGORIES},
    }
    return {"id": provider_id("modr-", ask), "model": ask.answered_model, "results": [result] * len(texts)}


FILES = Format("openai_files", "x-request-id", files, error)
UPLOADS = Format("openai_uploads", "x-request-id", uploads, error)
TRANSCRIPTIONS = Format(
    "openai_transcriptions",
    "x-request-id",
    transcriptions,
    error,
    transcriptions_stream,
    tokens=transcription_tokens,
)
SPEECH = Format("openai_speech", "x-request-id", speech, error, tokens=speech_tokens)
MODERATIONS = Format("openai_moderations", "x-request-id", moderations, error)
