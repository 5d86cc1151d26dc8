"""The settings of one upstream: where it is, how it is reached, who calls it, what it is let get away with."""

import re
import ssl
from pathlib import Path
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from proxy.effects import UNPROVING_4XX, UpstreamTraits
from proxy.endpoints import EndpointClass, Family
from proxy.keys import Identity

Choice = Literal["refuse", "accept"]
Mode = Literal["enforce", "observe"]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
HeaderName = Annotated[str, Field(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")]  # a token, RFC 9110 section 5.6.2
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
VariablePath = Annotated[str, Field(pattern=r"^(/[^?#\s]*)?$")]
Count = Annotated[int, Field(gt=0, le=2**20)]
ProviderId = Annotated[
    str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
]  # of genai-prices, which is asked when a price is needed
ModelPattern = Annotated[str, Field(min_length=1, max_length=256)]
ModelName = Annotated[str, Field(min_length=1, max_length=256)]
_VERSION: Final = re.compile(r"/v\d+[a-z]*\d*$")
_EGRESS: Final = re.compile(r"http://(?:[^/?#@\s]+@)?[^/?#@\s:]+:(\d{1,5})/?")
_BASE_URL: Final = re.compile(r"https?://[^/?#@\s]+(/[^?#\s]*)?")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PolicySettings(Strict):
    """For one endpoint class: standing acceptances of a second effect, unset the class's default; `mode`, unset the upstream's."""

    mode: Mode | None = None
    on_unknown: Choice | None = None
    after_server_error: Choice | None = None
    after_gateway_error: Choice | None = None
    after_cut_stream: Choice | None = None


NO_IDENTITIES: Final = frozenset(
    {
        "host",
        "connection",
        "content-length",
        "content-type",
        "transfer-encoding",
        "idempotency-key",
        "sendonce-token",
        "sendonce-accept",
    }
)


class CallerSettings(Strict):
    """Who calls, where the credential alone does not say it. Nothing here is verified: the provider checks the credential."""

    header: HeaderName | None = None  # names the caller instead of the credential: many users behind one API key
    bearer_claim: Annotated[str, Field(min_length=1)] | None = (
        None  # of a bearer token that is a JWT: what stays when the token is renewed
    )
    account_header: HeaderName | None = None  # beside a bearer token: what stays when the token is renewed

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name in ("header", "bearer_claim", "account_header") if getattr(self, name)]
        named = {(name or "").lower() for name in (self.header, self.account_header)}
        if taken := sorted(named & NO_IDENTITIES):
            raise ValueError(f"the header {taken[0]} says something else than who calls; name one that does")
        if len(given) > 1:
            raise ValueError(
                f"{' and '.join(given)} contradict each other: who calls is known by one of them; keep one"
            )
        return self

    @property
    def identity(self) -> Identity:
        names = (name.lower().encode() if name else None for name in (self.header, self.account_header))
        header, account_header = names
        return Identity(header, self.bearer_claim, account_header)


class UpstreamSettings(Strict):
    """One provider under /NAME/…"""

    base_url: str
    mode: Mode | None = None
    caller: CallerSettings = CallerSettings()
    terminal_evidence: Literal["required", "framing"] = (
        "required"  # "framing": its streams end without a terminal event
    )
    egress_proxy: SecretStr | None = None  # http://[user:password@]host:port
    ca_file: Path | None = None  # beside it no other authority is trusted
    connect_s: Seconds | None = None
    idle_s: Seconds | None = None
    keepalive_s: Seconds | None = None
    fresh_connections: bool = False  # one connection a request: no race with a provider that closes idle ones
    concurrency: Count | None = None  # calls sent at once; more wait, recorded, for their turn
    queue: Count | None = None  # how many may wait; beyond it 503 `overloaded`
    family: Family = Family.GENERIC
    gateway: bool = False
    answered_statuses: frozenset[Annotated[int, Field(ge=400, le=599)]] = frozenset()
    policy: dict[EndpointClass, PolicySettings] = {}
    key_variable: VariableName | None = (
        None  # of the operator's own key, for look-ups and resumes; unset the family's SDK's
    )
    injection: Literal[0, 1, 2] = 0  # what is added to a request's body so that it can be found again: docs/settling.md
    environment: dict[VariableName, VariablePath] = {}  # set by `sendonce run`: variable of an SDK -> path behind /NAME
    price_provider: ProviderId | None = (
        None  # whose prices `audit` takes, by genai-prices; unset the family's own; "none": free
    )
    price_as: dict[ModelPattern, ModelName] = {}  # of a model's name, * and ? allowed -> the model whose price it has

    @field_validator("policy")
    @classmethod
    def _no_policy_for_reads(cls, value: dict[EndpointClass, PolicySettings]) -> dict[EndpointClass, PolicySettings]:
        if EndpointClass.SAFE in value:
            raise ValueError("the class safe has no policy: its requests pass through; remove it")
        return value

    @field_validator("answered_statuses")
    @classmethod
    def _not_already_unknown(cls, value: frozenset[int]) -> frozenset[int]:
        if found := sorted(value & UNPROVING_4XX):
            raise ValueError(
                f"{found} prove nothing anyway, and stand under after_gateway_error or on_unknown; remove them"
            )
        return value

    @field_validator("ca_file")
    @classmethod
    def _certificates(cls, value: Path | None) -> Path | None:
        if value is not None:
            try:
                ssl.create_default_context(cafile=value)
            except OSError as error:  # ssl.SSLError is one
                raise ValueError(f"{value} holds no certificates in PEM form ({error}); name a CA file") from error
        return value

    @field_validator("egress_proxy")
    @classmethod
    def _egress(cls, value: SecretStr | None) -> SecretStr | None:
        found = _EGRESS.fullmatch(value.get_secret_value()) if value is not None else None
        if value is not None and (found is None or not 0 < int(found[1]) < 65536):
            raise ValueError("it must be http://[user:password@]host:port")
        return value

    @model_validator(mode="after")
    def _no_contradiction(self) -> Self:
        if self.fresh_connections and self.keepalive_s is not None:
            raise ValueError(
                "keepalive_s and fresh_connections contradict each other: a fresh connection is never kept; keep one"
            )
        if self.queue is not None and self.concurrency is None:
            raise ValueError("queue without concurrency: nothing ever waits; set concurrency, or remove queue")
        if self.ca_file is not None and self.base_url.startswith("http://"):
            raise ValueError(
                "ca_file with an http:// base_url: nothing would be checked; use https://, or remove ca_file"
            )
        return self

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

    def holds(self, url: str) -> bool:
        """Does a recorded URL lie below where this upstream is now?"""
        return url.startswith(self.base_url + "/")

    @property
    def traits(self) -> UpstreamTraits:
        return UpstreamTraits(self.gateway, self.answered_statuses, self.terminal_evidence == "required")
