"""Settings: command line over environment over file over defaults; an error names the field and the remedy."""

import os
from importlib.resources import files
from pathlib import Path

import pytest

from proxy.endpoints import EndpointClass, Family
from proxy.settings import CHEAP_CLASSES, SettingsError, load, upstream_overrides

CONFIG_FILES = sorted(Path(str(files("config").joinpath("example.toml"))).parent.glob("*.toml"))
SETTINGS_FILES = [path for path in CONFIG_FILES if path.name not in ("upstreams.toml", "output_limits.toml")]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the developer has set must not decide a test."""
    for name in [name for name in os.environ if name.startswith("SENDONCE_")]:
        monkeypatch.delenv(name)


def written(directory: Path, text: str) -> Path:
    path = directory / "sendonce.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", SETTINGS_FILES, ids=lambda path: path.name)
def test_shipped_configuration_loads(path: Path) -> None:
    """Every file in config/ that is one for --config."""
    assert load(path, {}).upstreams["openai"].family is Family.OPENAI


def test_example_changes_nothing_but_what_it_says() -> None:
    """Its plain values are the defaults, so that a reader may trust them."""
    example, defaults = load(Path("config/example.toml"), {}), load(None, {})
    assert example.limits == defaults.limits
    assert (example.host, example.port) == (defaults.host, defaults.port)
    assert example.policy("anthropic", EndpointClass.GENERATE).after_cut_stream is True
    assert example.upstreams["local"].base_url == "http://127.0.0.1:11434"


def test_command_line_beats_environment_beats_file_beats_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One field after another is taken away."""
    config = written(tmp_path, "port = 1001\n[limits]\nbody_bytes = 7\n")
    monkeypatch.setenv("SENDONCE_PORT", "1002")
    monkeypatch.setenv("SENDONCE_LIMITS__ADMITTED_REQUESTS", "3")
    assert load(config, {"port": 1003}).port == 1003
    settings = load(config, {"port": None})
    assert (settings.port, settings.limits.body_bytes, settings.limits.admitted_requests) == (1002, 7, 3)
    monkeypatch.delenv("SENDONCE_PORT")
    assert load(config, {}).port == 1001
    assert load(None, {}).port == 8787


def test_upstream_on_the_command_line_keeps_the_family_of_its_name() -> None:
    """A built-in name pointed elsewhere speaks its dialect; a new name is generic; a slash at the end is dropped."""
    overrides = upstream_overrides(["openai=http://127.0.0.1:1/", "mine=https://host/base"])
    settings = load(None, {"upstreams": overrides})
    openai, mine = settings.upstreams["openai"], settings.upstreams["mine"]
    assert (openai.base_url, openai.family) == ("http://127.0.0.1:1", Family.OPENAI)
    assert (mine.base_url, mine.family) == ("https://host/base", Family.GENERIC)
    assert settings.upstreams["anthropic"].base_url == "https://api.anthropic.com"


@pytest.mark.parametrize("given", ["openai", "=http://x", "openai="])
def test_upstream_that_is_no_pair_is_refused_with_an_example(given: str) -> None:
    """The remedy stands in the sentence."""
    with pytest.raises(SettingsError, match="NAME=BASE_URL, as in --upstream openai="):
        upstream_overrides([given])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prot = 1", r"The setting prot does not exist; remove it or correct its name \(in .*sendonce.toml"),
        ("[timeouts]\nretry_wait_s = 0", r"The setting timeouts.retry_wait_s is wrong: .*greater than 0"),
        ("[timeouts]\nretry_wait_s = inf", r"timeouts.retry_wait_s is wrong: .*finite"),
        ("port = 65536", r"The setting port is wrong: .*65535"),
        ("on_client_disconnect = 'perhaps'", r"on_client_disconnect is wrong: .*'drain' or 'cancel_after'"),
        ("[upstreams.a]\nfamily = 'openai'", r"upstreams.a.base_url is wrong: Field required"),
        ("[upstreams._sendonce]\nbase_url = 'http://x'", r"run and _sendonce are taken"),
        ("[upstreams.a]\nbase_url = 'http://u:p@x'", r"upstreams.a.base_url is wrong"),
        ("upstreams = 3", r"The setting upstreams is wrong"),
        ("[upstreams]\nopenai = 3", r"upstreams.openai"),
        ("[", r"is not TOML: .*Correct it there"),
    ],
)
def test_unusable_setting_is_named_with_its_remedy(tmp_path: Path, text: str, sentence: str) -> None:
    """One sentence a problem, with the path to the field and where to look."""
    with pytest.raises(SettingsError, match=sentence):
        load(written(tmp_path, text), {})


def test_environment_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is as strict as the file."""
    monkeypatch.setenv("SENDONCE_LIMITS__BODY_BYTES", "much")
    with pytest.raises(SettingsError, match=r"limits\.body_bytes is wrong"):
        load(None, {})


@pytest.mark.parametrize("endpoint_class", list(EndpointClass))
def test_default_policy_accepts_where_a_second_effect_is_cheap(endpoint_class: EndpointClass) -> None:
    """Semantics section 4, the table of settings: one row a setting, two columns of classes."""
    cheap = endpoint_class in CHEAP_CLASSES
    policy = load(None, {}).policy("openai", endpoint_class)
    given = (policy.on_unknown, policy.after_server_error, policy.after_gateway_error, policy.after_cut_stream)
    assert given == (cheap, True, cheap, cheap)


def test_policy_is_of_one_upstream_and_one_class(tmp_path: Path) -> None:
    """What is accepted for one endpoint class of one upstream is accepted nowhere else."""
    settings = load(written(tmp_path, '[upstreams.openai.policy.generate]\non_unknown = "accept"\n'), {})
    assert settings.policy("openai", EndpointClass.GENERATE).on_unknown
    assert not settings.policy("openai", EndpointClass.JOB).on_unknown
    assert not settings.policy("anthropic", EndpointClass.GENERATE).on_unknown
    assert not settings.policy("openai", EndpointClass.GENERATE).after_cut_stream


def test_digest_names_the_configuration() -> None:
    """Equal settings, equal digest; any difference is another one; it stands in every standing acceptance."""
    one, same, other = load(None, {}), load(None, {}), load(None, {"port": 1})
    assert one.digest == same.digest != other.digest
    assert one.policy("openai", EndpointClass.GENERATE).config_digest == one.digest
