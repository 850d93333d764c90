"""Settings: nothing misspelled is ignored, nothing secret is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
from pydantic import BaseModel, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from service_kit.settings import ServiceSettings, SettingsError


class Inner(BaseModel):
    """Nested settings."""

    model_config = {"extra": "forbid"}

    batch_size: int = 10
    lease_seconds: float = 30.0


class Sample(ServiceSettings):
    """Settings of a service that does not exist."""

    model_config = SettingsConfigDict(env_prefix="DSEARCH_SAMPLE_")

    bind: str = "127.0.0.1:0"
    workers: Annotated[int, Field(ge=1)] = 1
    api_key: SecretStr = SecretStr("")
    store_url: str = ""
    outbox: Inner = Inner()


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(__import__("os").environ):
        if name.upper().startswith("DSEARCH_SAMPLE_"):
            monkeypatch.delenv(name)


def test_arguments_win_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each setting comes from the nearest source that has it."""
    file = tmp_path / "dsearch.toml"
    file.write_text('[sample]\nbind = "file"\nworkers = 3\napi_key = "k"\n[sample.outbox]\nbatch_size = 7\n')
    monkeypatch.setenv("DSEARCH_SAMPLE_WORKERS", "4")
    monkeypatch.setenv("DSEARCH_SAMPLE_OUTBOX__LEASE_SECONDS", "5")
    settings = Sample.load(toml_file=file, section="sample", bind="argument")
    assert (settings.bind, settings.workers) == ("argument", 4)
    assert settings.api_key.get_secret_value() == "k"
    assert settings.outbox == Inner(batch_size=7, lease_seconds=5.0)
    assert type(settings) is Sample
    assert Sample.load(bind=None) == Sample.load() != settings


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("DSEARCH_SAMPLE_WORKRES", "DSEARCH_SAMPLE_WORKERS"),
        ("dsearch_sample_workres", "DSEARCH_SAMPLE_WORKERS"),
        ("DSEARCH_SAMPLE_OUTBOX__BATCHSIZE", "DSEARCH_SAMPLE_OUTBOX__BATCH_SIZE"),
        ("DSEARCH_SAMPLE_OUTBOX_BATCH_SIZE", "DSEARCH_SAMPLE_OUTBOX__BATCH_SIZE"),
        ("DSEARCH_SAMPLE_", "DSEARCH_SAMPLE_BIND"),
    ],
)
def test_a_misspelled_variable_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, hint: str) -> None:
    """A variable under the prefix that sets nothing stops the start, and the message has the right name."""
    monkeypatch.setenv(name, "5")
    with pytest.raises(SettingsError, match=hint):
        Sample.load()


def test_variables_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only names under the prefix of the service are looked at."""
    monkeypatch.setenv("DSEARCH_SAMPLER_X", "5")
    monkeypatch.setenv("WORKERS", "nine")
    assert Sample.load().workers == 1


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("[sample]\nworkres = 3\n", "workers"),
        ("[sample.outbox]\nbatchsize = 3\n", "batchsize"),
        ("[sample]\nworkers = 0\n", "DSEARCH_SAMPLE_WORKERS"),
        ("sample = 3\n", "table"),
        ("sample = [\n", "TOML"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, hint: str) -> None:
    """A misspelled or wrong entry of the file stops the start and is named."""
    file = tmp_path / "dsearch.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=hint):
        Sample.load(toml_file=file, section="sample")


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    """A path that was given and is not there is an error, not an empty file."""
    with pytest.raises(SettingsError, match="does not exist"):
        Sample.load(toml_file=tmp_path / "missing.toml")


def test_secrets_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets and credentials in URLs are masked in the description, the repr and the errors."""
    monkeypatch.setenv("DSEARCH_SAMPLE_API_KEY", "s3cret")
    monkeypatch.setenv("DSEARCH_SAMPLE_STORE_URL", "bolt://user:s3cret@db:7687/x")
    settings = Sample.load()
    described = settings.describe()
    assert "s3cret" not in str(described)
    assert "s3cret" not in repr(settings.api_key)
    assert described["api_key"] == "********"
    assert described["store_url"] == "bolt://********@db:7687/x"
    assert described["outbox"] == {"batch_size": 10, "lease_seconds": 30.0}
    assert Sample.load(api_key=SecretStr("")).describe()["api_key"] == ""
    monkeypatch.setenv("DSEARCH_SAMPLE_WORKERS", "s3cret")
    with pytest.raises(SettingsError) as refused:
        Sample.load()
    assert "s3cret" not in str(refused.value)


def test_settings_do_not_change() -> None:
    """What was printed at the start is what holds."""
    with pytest.raises(Exception, match="frozen"):
        Sample.load().workers = 2  # type: ignore[misc]


def test_settings_without_a_prefix_are_a_mistake() -> None:
    """A service whose settings would take any variable of the machine is refused."""

    class Bare(ServiceSettings):
        bind: str = ""

    with pytest.raises(TypeError, match="env_prefix"):
        Bare.load()
