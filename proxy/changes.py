"""Which settings may change while it serves (SIGHUP), and what becomes of a file that is read again."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from proxy.settings import Settings, SettingsError

# These are read anew wherever they are needed. The others are built into a part or a socket.
CHANGEABLE: Final = frozenset({"caller_token", "tls_cert", "tls_key", "mode"})
ABSENT: Final = object()  # of an upstream that is on one side only
CHANGEABLE_WITHIN: Final = {
    "limits": frozenset({"body_bytes", "admitted_requests", "retention_days"}),
    # Of each one that is there before and after; the last three only commands use.
    "upstreams": frozenset({"mode", "policy", "environment", "price_provider", "price_as", "key_variable"}),
    "timeouts": frozenset({"client_body_idle_s", "stop_s", "retry_wait_s", "late_retry_s", "duplicate_settle_ms"}),
}


@dataclass(frozen=True, slots=True)
class Reread:
    """`values`: what changes, by field; nothing where the new settings or the certificate cannot be read."""

    sentence: str
    is_read: bool
    values: dict[str, Any] = field(default_factory=dict)


def reread(now: Settings, read: Callable[[], Settings]) -> Reread:
    """`read` raises SettingsError: then nothing changes."""
    try:
        asked = read()
    except SettingsError as error:
        return Reread(f"The settings cannot be read again, and nothing changes. {error}", is_read=False)
    values, changed, fixed = compared(now, asked)
    try:
        now.changed_by(values).tls()  # in a context of its own: what is served with keeps its pair
    except ValueError as error:
        return Reread(f"The certificate cannot be read again, and nothing changes: {error}.", is_read=False)
    sentence = f"The settings were read again; changed: {', '.join(changed) or 'none'}."
    if fixed:
        sentence += f" Only a restart changes {', '.join(fixed)}: restart sendonce, or set back what you changed."
    return Reread(sentence, is_read=True, values=values)


def compared(now: Settings, asked: Settings) -> tuple[dict[str, Any], list[str], list[str]]:
    """What changes, by field; the names of what changes, and of what differs and cannot."""
    before, after = _flat(now), _flat(asked)
    differ = sorted(
        name for name in before.keys() | after.keys() if before.get(name, ABSENT) != after.get(name, ABSENT)
    )
    keeps_tls = (now.tls_cert is None) == (asked.tls_cert is None)  # in the clear or not is the listener's
    both = before.keys() & after.keys()
    changed = [name for name in differ if name in both and _can_change(name, keeps_tls=keeps_tls)]
    values: dict[str, Any] = {}
    for name in changed:
        first, *within = name.split(".")
        new, so_far = getattr(asked, first), values.get(first, getattr(now, first))
        if first == "upstreams":
            upstream, field_name = ".".join(within[:-1]), within[-1]
            update = {field_name: getattr(new[upstream], field_name)}
            new = {**so_far, upstream: so_far[upstream].model_copy(update=update)}
        elif within:
            new = so_far.model_copy(update={within[0]: getattr(new, within[0])})
        values[first] = new
    return values, changed, [name for name in differ if name not in changed]


def _flat(settings: Settings) -> dict[str, Any]:
    """By name, in dots; the name of a field is the last."""
    found: dict[str, Any] = {}
    for name in Settings.model_fields:
        value = getattr(settings, name)
        if name == "upstreams":
            for upstream, about in value.items():
                found |= {f"{name}.{upstream}.{one}": getattr(about, one) for one in type(about).model_fields}
        elif name in CHANGEABLE_WITHIN:
            found |= {f"{name}.{within}": getattr(value, within) for within in type(value).model_fields}
        else:
            found[name] = value
    return found


def _can_change(name: str, *, keeps_tls: bool) -> bool:
    first, *within = name.split(".")
    if within:
        return within[-1] in CHANGEABLE_WITHIN.get(first, ())
    return first in CHANGEABLE and (keeps_tls or not first.startswith("tls_"))
