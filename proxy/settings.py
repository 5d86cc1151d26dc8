"""Settings: command line over environment (`SENDONCE_…`, nested with `__`) over TOML over defaults.

An error names the field and the remedy. Every limit has its unit in its name and its reason beside it.
"""

import re
import shlex
import tomllib
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

import orjson
from blake3 import blake3
from platformdirs import user_state_path
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource
from pydantic_settings import SettingsError as PydanticSettingsError

from proxy.decisions import Policy
from proxy.effects import UpstreamTraits
from proxy.endpoints import EndpointClass, Family

RESERVED_NAMES: Final = frozenset({"run", "_sendonce"})
_VERSION: Final = re.compile(r"/v\d+[a-z]*\d*$")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Where a second effect costs little, the default accepts it (semantics section 4).
CHEAP_CLASSES: Final = frozenset(
    {EndpointClass.STATELESS_BILLED, EndpointClass.IDEMPOTENT, EndpointClass.CREDENTIAL_MINT}
)

Choice = Literal["refuse", "accept"]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Bytes = Annotated[int, Field(gt=0, le=2**40)]  # 1 TiB: more is a slip of the keyboard
_BASE_URL: Final = re.compile(r"https?://[^/?#@\s]+(/[^?#\s]*)?")


class SettingsError(Exception):
    """Configuration that cannot be used; the message names the field and the remedy. Exit code 2."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PolicySettings(_Strict):
    """Standing acceptances of a second effect, for one endpoint class; unset: the class's default."""

    on_unknown: Choice | None = None
    after_server_error: Choice | None = None
    after_gateway_error: Choice | None = None
    after_cut_stream: Choice | None = None


class UpstreamSettings(_Strict):
    """One provider under /NAME/…"""

    base_url: str
    family: Family = Family.GENERIC
    gateway: bool = False
    answered_statuses: frozenset[int] = frozenset()
    policy: dict[EndpointClass, PolicySettings] = {}

    @model_validator(mode="after")
    def _without_version(self) -> Self:
        if self.family is not Family.GENERIC and (found := _VERSION.search(self.base_url)):
            raise ValueError(
                f"base_url ends in {found[0]}; leave the version path out, sendonce adds it for {self.family}"
            )
        return self

    @field_validator("base_url")
    @classmethod
    def _usable(cls, value: str) -> str:
        if not _BASE_URL.fullmatch(value):
            raise ValueError("it must be http(s)://host[:port][/path], without query and without credentials")
        try:
            usable = bool(urlsplit(value).hostname) and urlsplit(value).port != 0
        except ValueError as error:
            raise ValueError(f"it has no usable host and port ({error})") from error
        if not usable:
            raise ValueError("it has no usable host and port")
        return value.rstrip("/")

    @property
    def traits(self) -> UpstreamTraits:
        return UpstreamTraits(self.gateway, self.answered_statuses)


class Limits(_Strict):
    """Sizes and counts."""

    body_bytes: Bytes = 512 * 1024 * 1024  # OpenAI's largest upload; what is above it was meant for another tool
    admitted_requests: Bytes = 1024  # at once; beyond it 503 `overloaded` is kinder than a queue nobody sees


class Timeouts(_Strict):
    """Seconds; `_ms` where it is milliseconds. There is no total time-out: long thinking is not a fault."""

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
    on_client_disconnect: Literal["drain", "cancel_after"] = "drain"
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    upstreams: dict[str, UpstreamSettings] = {}

    @field_validator("host")
    @classmethod
    def _loopback(cls, value: str) -> str:
        if value not in ("127.0.0.1", "::1", "localhost"):
            raise ValueError("sendonce listens on loopback only for now; put a TLS-terminating proxy in front")
        return value

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
        return Policy(**{name: choice == "accept" for name, choice in chosen.items()}, config_digest=self.digest)


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
            parts.append(f"The setting {field} is wrong: {problem['msg'].removeprefix('Value error, ')}{where}.")
    return " ".join(parts)
