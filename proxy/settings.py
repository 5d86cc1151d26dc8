"""Settings: command line over environment (`SENDONCE_…`, nested with `__`) over TOML over defaults.

An error names the field and the remedy. Every limit has its unit in its name and its reason beside it.
"""

import re
import shlex
import ssl
import tomllib
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import orjson
from blake3 import blake3
from platformdirs import user_state_path
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource
from pydantic_settings import SettingsError as PydanticSettingsError

from proxy.decisions import Policy
from proxy.endpoints import EndpointClass
from proxy.upstream_settings import Count, Mode, PolicySettings, Seconds, Strict, UpstreamSettings

LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
# FORMAT.md section 9: no smaller body goes unkept but a minted credential
LOWEST_RECORD_LIMIT_BYTES: Final = 1024 * 1024
CALLER_TOKEN_LEAST_CHARS: Final = 16  # guessing one over a network takes longer than anybody waits
RESERVED_NAMES: Final = frozenset({"run", "_sendonce"})
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Where a second effect costs little, the default accepts it (semantics section 4).
CHEAP_CLASSES: Final = frozenset(
    {EndpointClass.STATELESS_BILLED, EndpointClass.IDEMPOTENT, EndpointClass.CREDENTIAL_MINT}
)

Bytes = Annotated[int, Field(gt=0, le=2**40)]  # 1 TiB: more is a slip of the keyboard


class SettingsError(Exception):
    """Configuration that cannot be used; the message names the field and the remedy. Exit code 2."""


RecordLimit = Annotated[int, Field(ge=LOWEST_RECORD_LIMIT_BYTES, le=2**40)]


class Limits(Strict):
    """Sizes and counts."""

    body_bytes: Bytes = 512 * 1024 * 1024  # OpenAI's largest upload; what is above it was meant for another tool
    record_limit_bytes: RecordLimit = 256 * 1024 * 1024  # of one body; beyond it counted and hashed: not replayable
    disk_reserve_bytes: Bytes = 64 * 1024 * 1024  # kept free for calls in flight; at most 5 % of the disk
    admitted_requests: Count = 1024  # at once; beyond it 503 `overloaded` is kinder than a queue nobody sees
    retention_days: Annotated[int, Field(ge=0, le=36500)] = 30  # of `sendonce prune`: a billing period stays replayable


class Timeouts(Strict):
    """Seconds; `_ms` where it is milliseconds. There is no total time-out: long thinking is not a fault."""

    client_header_s: Seconds = 10  # from a connection's or request's first byte to the end of its head
    client_body_idle_s: Seconds = 60
    upstream_connect_s: Seconds = 10
    upstream_idle_s: Seconds = 900  # above the SDKs' own 600, so that a client gives up first
    upstream_keepalive_s: Seconds = 15  # below the providers', so that a pooled connection is rarely a dead one
    drain_limit_s: Seconds = 900  # how long a client that is gone is still worked for
    cancel_grace_s: Seconds = 5  # the same with on_client_disconnect = "cancel_after"
    stop_s: Seconds = 10  # how long SIGTERM waits for answers in flight; what is left stays unknown, which is the truth
    retry_wait_s: Seconds = 5
    late_retry_s: Seconds = 120
    duplicate_settle_ms: Seconds = 50


@cache
def builtin_upstreams() -> dict[str, dict[str, Any]]:
    return tomllib.loads(files("config").joinpath("upstreams.toml").read_text())


class Settings(BaseSettings):
    """Everything `serve` needs."""

    model_config = SettingsConfigDict(
        env_prefix="SENDONCE_", env_nested_delimiter="__", extra="forbid", frozen=True, validate_default=True
    )

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8787
    state_dir: Path = Field(default_factory=lambda: user_state_path("sendonce"))
    receipts_dir: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    supervisor: bool = True  # a small parent holds the sockets; without it somebody else must start what died
    behind_tls_proxy: bool = False  # somebody in front terminates TLS; without either sendonce listens on loopback only
    caller_token: SecretStr | None = None  # SENDONCE_CALLER_TOKEN; clients send it as Sendonce-Token
    mode: Mode = "enforce"
    on_client_disconnect: Literal["drain", "cancel_after"] = "drain"
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    upstreams: dict[str, UpstreamSettings] = {}

    @field_validator("caller_token")
    @classmethod
    def _long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        text = value.get_secret_value() if value else ""
        if value and (
            len(text) < CALLER_TOKEN_LEAST_CHARS or not text.isascii() or not text.isprintable() or " " in text
        ):
            raise ValueError(f"it must have at least {CALLER_TOKEN_LEAST_CHARS} visible ASCII characters")
        return value

    @model_validator(mode="after")
    def _not_in_the_open(self) -> Self:
        """Who can reach the port can spend the provider's money, and reads prompts on the wire."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together: set both, or neither")
        if self.tls_cert is not None and self.behind_tls_proxy:
            raise ValueError("tls_cert and behind_tls_proxy contradict each other: who terminates TLS? Keep one")
        if self.tls_cert is not None:
            self.tls()
        if self.host not in LOOPBACK:
            if self.tls_cert is None and not self.behind_tls_proxy:
                raise ValueError(
                    f"host {self.host} is not loopback: prompts and keys would cross the network in the clear. Set tls_cert and "
                    "tls_key, or --behind-tls-proxy where something in front terminates TLS"
                )
            if self.caller_token is None:
                raise ValueError(
                    f"host {self.host} is not loopback: anybody there could spend your keys' money. Set SENDONCE_CALLER_TOKEN"
                )
        return self

    def tls(self) -> ssl.SSLContext | None:
        """Raises ValueError where the files are no certificate and key."""
        if self.tls_cert is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.tls_cert, self.tls_key)
        except OSError as error:  # ssl.SSLError is one
            raise ValueError(f"tls_cert and tls_key cannot be used together ({error})") from error
        return context

    @model_validator(mode="before")
    @classmethod
    def _with_builtins(cls, data: dict[str, Any]) -> dict[str, Any]:
        given = data.get("upstreams") or {}
        if isinstance(given, dict):
            builtins = builtin_upstreams()
            merged = {
                name: {**builtins.get(name, {}), **fields} if isinstance(fields, dict) else fields
                for name, fields in given.items()
            }
            data = {**data, "upstreams": {**builtins, **merged}}
        return data

    @field_validator("upstreams")
    @classmethod
    def _usable_names(cls, value: dict[str, UpstreamSettings]) -> dict[str, UpstreamSettings]:
        for name in value:
            if name in RESERVED_NAMES or not _NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} cannot be the name of an upstream: it is a path segment, and run and _sendonce are taken"
                )
        return value

    @cached_property
    def digest(self) -> str:
        """Names this configuration in the ledger; part of the record of every standing acceptance."""
        return blake3(orjson.dumps(self.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS)).hexdigest(16)

    def changed_by(self, values: dict[str, Any]) -> "Settings":
        """Others, with a digest of their own. The values were validated where they come from."""
        return Settings.model_construct(**{name: getattr(self, name) for name in Settings.model_fields} | values)

    def take(self, values: dict[str, Any]) -> None:
        """Changes them for everyone who holds them: the one exception to `frozen`, for SIGHUP, once the new digest is on record."""
        vars(self).update(values)
        vars(self).pop("digest", None)

    def policy(self, upstream: str, endpoint_class: EndpointClass) -> Policy:
        given = self.upstreams[upstream].policy.get(endpoint_class, PolicySettings())
        cheap = endpoint_class in CHEAP_CLASSES
        default = PolicySettings(
            on_unknown="accept" if cheap else "refuse",
            after_server_error="accept",
            after_gateway_error="accept" if cheap else "refuse",
            after_cut_stream="accept" if cheap else "refuse",
        )
        chosen = {**default.model_dump(), **given.model_dump(exclude_none=True)}
        mode = chosen.pop("mode") or self.upstreams[upstream].mode or self.mode
        accepts = {name: choice == "accept" for name, choice in chosen.items()}
        return Policy(**accepts, observes=mode == "observe", config_digest=self.digest)


def load(config: Path | None, overrides: dict[str, Any]) -> Settings:
    """Raises SettingsError. `overrides` are the command line's, by field name; None means not given."""

    class _WithFile(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic-settings' signature
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=config)

    if config is not None and config.is_dir():
        raise SettingsError(f"{config} is a directory. Name a TOML file with --config.")
    if config is not None and not config.is_file():
        raise SettingsError(
            f"There is no configuration file {config}. Name an existing one with --config, or leave it out."
        )
    try:
        return _WithFile(**{name: value for name, value in overrides.items() if value is not None})
    except PydanticSettingsError as error:
        raise SettingsError(
            f"An environment variable SENDONCE_… cannot be read: {error}. Correct or unset it."
        ) from error
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{config} is not UTF-8 text, so it is not TOML. Name a configuration file with --config."
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{config} is not TOML: {error}. Correct it there.") from error
    except ValidationError as error:
        raise SettingsError(_sentences(error, config)) from error


def command_options(state_dir: Path) -> str:
    """What a printed command must end with to find this state dir; empty for the default one."""
    return "" if state_dir == user_state_path("sendonce") else f" --state-dir {shlex.quote(str(state_dir))}"


def upstream_overrides(pairs: list[str]) -> dict[str, dict[str, str]]:
    """`NAME=BASE_URL` from the command line. Raises SettingsError."""
    overrides = {}
    for pair in pairs:
        name, equals, base_url = pair.partition("=")
        if not equals or not name or not base_url:
            raise SettingsError(
                f"--upstream {pair!r} is not NAME=BASE_URL, as in --upstream openai=http://127.0.0.1:9000"
            )
        overrides[name] = {"base_url": base_url}
    return overrides


def _sentences(error: ValidationError, config: Path | None) -> str:
    where = (
        f" (in {config}, the environment or the command line)"
        if config
        else " (in the environment or on the command line)"
    )
    parts = []
    for problem in error.errors():
        field = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            parts.append(f"The setting {field} does not exist; remove it or correct its name{where}.")
        else:
            named = f"The setting {field} is wrong" if field else "The settings do not go together"
            parts.append(f"{named}: {problem['msg'].removeprefix('Value error, ')}{where}.")
    return " ".join(parts)
