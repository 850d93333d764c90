"""Settings: read once, at the composition root, from the environment and an optional TOML file.

A misspelled name is refused, in both places: pydantic alone ignores an unknown environment variable, and a limit that
was never applied is found when it is too late. The environment wins over the file; arguments win over both.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from pydantic import BaseModel, SecretBytes, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.sources import InitSettingsSource

_NESTED: Final = "__"
_MASK: Final = "********"
_URL_CREDENTIALS: Final = re.compile(r"(?<=://)[^/@\s]+(?=@)")


class SettingsError(Exception):
    """The settings cannot be used; the message names each one at fault and what would be right, never a value."""


class ServiceSettings(BaseSettings):
    """Base of a service's settings.

    A subclass names its prefix::

        class LedgerSettings(ServiceSettings):
            model_config = SettingsConfigDict(env_prefix="DSEARCH_LEDGER_")
            bind: str = "127.0.0.1:0"

        settings = LedgerSettings.load(toml_file=path, section="ledger")

    Nested models take ``PREFIX_OUTER__INNER``. No prefix may begin with another service's prefix.
    """

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        case_sensitive=False,
        env_nested_delimiter=_NESTED,
        env_ignore_empty=True,
        hide_input_in_errors=True,
        validate_default=True,
    )

    # Values of the file, between load() and the sources that pydantic asks for; only set while loading.
    _file_values: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def load(cls, *, toml_file: Path | None = None, section: str = "", **arguments: Any) -> Self:
        """Return the settings.

        Args:
            toml_file: A file to read as well; it must exist when named.
            section: The table of the file that belongs to this service; empty for the whole file.
            arguments: Values that win over everything.

        Raises:
            SettingsError: A name is unknown or a value is wrong; the message lists all of them.
        """
        prefix = cls.model_config.get("env_prefix", "")
        if not prefix:
            raise TypeError(f"{cls.__name__} needs an env_prefix")
        from_file = _read_toml(toml_file, section) if toml_file is not None else {}
        problems = _unknown_in_environment(cls, prefix)
        if problems:
            raise SettingsError("; ".join(problems))
        loader = type(cls.__name__, (cls,), {"_file_values": from_file, "__module__": cls.__module__})
        try:
            loaded = loader(**{name: value for name, value in arguments.items() if value is not None})
        except ValidationError as error:
            raise SettingsError(_explain(error, prefix, cls)) from None
        return cls.model_construct(**{name: getattr(loaded, name) for name in cls.model_fields})

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment, then the file."""
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, InitSettingsSource(settings_cls, dict(cls._file_values))

    def describe(self) -> dict[str, Any]:
        """Return every setting by name, secrets and credentials in URLs masked; for the log line at start."""
        described: dict[str, Any] = _masked(self)
        return described


def _read_toml(path: Path, section: str) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            values: Any = tomllib.load(file)
    except FileNotFoundError:
        raise SettingsError(f"{path} does not exist") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None
    for part in section.split(".") if section else ():
        values = values.get(part, {})
        if not isinstance(values, dict):
            raise SettingsError(f"{path}: {section} must be a table")
    return dict(values)


def _unknown_in_environment(cls: type[BaseModel], prefix: str) -> list[str]:
    known = _variables(cls, prefix.upper())
    problems = []
    for variable in sorted(os.environ):
        name = variable.upper()
        if name.startswith(prefix.upper()) and name not in known:
            problems.append(f"{variable} is not a setting{_suggest(name, known)}")
    return problems


def _variables(cls: type[BaseModel], prefix: str) -> list[str]:
    """Return every variable that sets something, those of nested models included."""
    found = []
    for name, info in cls.model_fields.items():
        variable = f"{prefix}{name.upper()}"
        found.append(variable)
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found += _variables(inner, f"{variable}{_NESTED}")
    return found


def _suggest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"


def _explain(error: ValidationError, prefix: str, cls: type[BaseModel]) -> str:
    parts = []
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        path = [str(part) for part in problem["loc"]]
        name = ".".join(path)
        if problem["type"] == "extra_forbidden":
            parts.append(f"{name} is not a setting{_suggest(name, list(cls.model_fields))}")
        else:
            variable = f"{prefix}{_NESTED.join(path)}".upper()
            parts.append(f"{name} ({variable}): {problem['msg']}")
    return "; ".join(parts)


def _masked(value: Any) -> Any:
    if isinstance(value, SecretStr | SecretBytes):
        return _MASK if value.get_secret_value() else ""
    if isinstance(value, BaseModel):
        return {name: _masked(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {str(key): _masked(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_masked(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return _URL_CREDENTIALS.sub(_MASK, str(value))
