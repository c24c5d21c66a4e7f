# SPDX-License-Identifier: Apache-2.0
"""The table of environment variables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from torchtpu_core import env_vars
from torchtpu_core.env_values import Collectives, EagerMode, Fallback, LogTopic, Numerics
from torchtpu_core.env_vars import EnvVar
from torchtpu_core.errors import EnvironmentVariableError


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    """An environment without our variables, and a table as it was."""
    for name in list(os.environ):
        if name.startswith(env_vars.PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.setattr(env_vars, "_rows", dict(env_vars._rows))
    env_vars.reset()
    yield
    env_vars.reset()


def test_settings_of_an_empty_environment_are_the_defaults(monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    settings = env_vars.settings()
    assert settings == env_vars.Settings(
        target=None,
        eager_mode=EagerMode.FUSED,
        fused_background=True,
        fallback=Fallback.WARN,
        numerics=Numerics.EXACT,
        disable_plugins=frozenset(),
        log=frozenset(),
        cache_dir=Path("/somewhere/torchtpu"),
        cache_url=None,
        cache_max_bytes=4 * 2**30,
        cache_wait_s=120.0,
        cache_key=b"",
        collectives=Collectives.AUTO,
        collective_timeout_s=600.0,
        disable_autoload=False,
    )


@pytest.mark.parametrize(
    ("name", "text", "field", "expected"),
    [
        ("TARGET", "v5e:2x2", "target", "v5e:2x2"),
        ("TARGET", "", "target", None),
        ("EAGER_MODE", "Debug", "eager_mode", EagerMode.DEBUG),
        ("EAGER_MODE", "DEFER_NEVER_AND_LAUNCH_BLOCKING", "eager_mode", EagerMode.DEBUG),
        ("EAGER_MODE", "DEFER_NEVER", "eager_mode", EagerMode.STRICT),
        ("EAGER_MODE", "DEFER_AND_FUSE", "eager_mode", EagerMode.FUSED),
        ("FALLBACK", "error", "fallback", Fallback.ERROR),
        ("NUMERICS", "tpu", "numerics", Numerics.TPU),
        ("DISABLE_PLUGINS", "a, b,", "disable_plugins", frozenset({"a", "b"})),
        ("LOG", "compiles,FLUSHES", "log", frozenset({LogTopic.COMPILES, LogTopic.FLUSHES})),
        ("CACHE_DIR", "", "cache_dir", None),
        ("CACHE_DIR", "/a/b", "cache_dir", Path("/a/b")),
        ("CACHE_URL", " memory://x ", "cache_url", "memory://x"),
        ("CACHE_MAX_BYTES", "1.5 GiB", "cache_max_bytes", 3 * 2**29),
        ("CACHE_MAX_BYTES", "1000", "cache_max_bytes", 1000),
        ("CACHE_WAIT_S", "3", "cache_wait_s", 3.0),
        ("CACHE_KEY", "secret", "cache_key", b"secret"),
        ("COLLECTIVES", "XLA", "collectives", Collectives.XLA),
        ("COLLECTIVE_TIMEOUT_S", "2.5", "collective_timeout_s", 2.5),
        ("DISABLE_AUTOLOAD", "Yes", "disable_autoload", True),
        ("DISABLE_AUTOLOAD", "0", "disable_autoload", False),
    ],
)
def test_settings_of_an_allowed_value_hold_it(monkeypatch, name, text, field, expected) -> None:
    monkeypatch.setenv(env_vars.PREFIX + name, text)
    assert getattr(env_vars.settings(), field) == expected


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("EAGER_MODE", "lazy", "debug, strict, fused"),
        ("FALLBACK", "no", "warn, error, quiet"),
        ("LOG", "compiles,everything", "recompiles"),
        ("COLLECTIVE_TIMEOUT_S", "-1", "positive"),
        ("COLLECTIVE_TIMEOUT_S", "inf", "positive"),
        ("COLLECTIVE_TIMEOUT_S", "soon", "positive"),
        ("DISABLE_AUTOLOAD", "maybe", "true"),
    ],
)
def test_settings_of_a_bad_value_state_the_allowed_ones(monkeypatch, name, text, allowed) -> None:
    monkeypatch.setenv(env_vars.PREFIX + name, text)
    with pytest.raises(EnvironmentVariableError, match=allowed) as caught:
        env_vars.settings()
    assert text in str(caught.value)


def test_settings_with_an_unknown_name_suggest_the_nearest(monkeypatch) -> None:
    monkeypatch.setenv("TORCH_TPU_TARGTE", "cpu")
    with pytest.raises(EnvironmentVariableError, match="Did you mean 'TORCH_TPU_TARGET'"):
        env_vars.settings()


def test_settings_with_several_mistakes_name_them_all(monkeypatch) -> None:
    monkeypatch.setenv("TORCH_TPU_LOG", "compilse,flushes,everything")
    monkeypatch.setenv("TORCH_TPU_EAGER_MODE", "defer_nevre")
    monkeypatch.setenv("TORCH_TPU_CASHE_DIR", "/a")
    monkeypatch.setenv("TORCH_TPU_TARGTE", "cpu")
    with pytest.raises(EnvironmentVariableError) as caught:
        env_vars.settings()
    text = str(caught.value)
    assert "'compilse' is unknown. Did you mean 'compiles'?" in text
    assert "'everything' is unknown." in text and "'flushes' is unknown" not in text
    assert "'defer_nevre' is unknown. Did you mean 'defer_never'?" in text
    assert "Did you mean 'TORCH_TPU_CACHE_DIR'?" in text
    assert "Did you mean 'TORCH_TPU_TARGET'?" in text


def test_settings_are_read_once(monkeypatch) -> None:
    first = env_vars.settings()
    monkeypatch.setenv("TORCH_TPU_FALLBACK", "error")
    assert env_vars.settings() is first


def test_reset_reads_the_environment_again(monkeypatch) -> None:
    env_vars.settings()
    monkeypatch.setenv("TORCH_TPU_FALLBACK", "error")
    env_vars.reset()
    assert env_vars.settings().fallback is Fallback.ERROR


def test_read_of_one_variable_ignores_the_others(monkeypatch) -> None:
    monkeypatch.setenv("TORCH_TPU_UNHEARD_OF", "1")
    monkeypatch.setenv("TORCH_TPU_DISABLE_PLUGINS", "acme")
    assert env_vars.read("TORCH_TPU_DISABLE_PLUGINS") == {"acme"}


def test_declared_variable_is_known_and_parsed(monkeypatch) -> None:
    monkeypatch.setenv("TORCH_TPU_ACME", "7")
    env_vars.declare(EnvVar("TORCH_TPU_ACME", int, 3, "an integer", "Acme's number."))
    assert env_vars.read("TORCH_TPU_ACME") == 7
    assert env_vars.settings().fallback is Fallback.WARN


def test_declare_of_the_same_row_twice_is_accepted() -> None:
    row = EnvVar("TORCH_TPU_ACME", int, 3, "an integer", "Acme's number.")
    env_vars.declare(row)
    env_vars.declare(row)
    assert env_vars.table()[-1] == row


def test_declare_of_a_taken_name_raises() -> None:
    with pytest.raises(EnvironmentVariableError, match="declared twice"):
        env_vars.declare(EnvVar("TORCH_TPU_LOG", int, 3, "an integer", "Not the log."))


def test_declare_of_a_name_without_prefix_raises() -> None:
    with pytest.raises(EnvironmentVariableError, match="TORCH_TPU_"):
        env_vars.declare(EnvVar("ACME", int, 3, "an integer", "Acme's number."))


def test_table_rows_have_settings_fields_of_the_same_name() -> None:
    fields = {row.name.removeprefix(env_vars.PREFIX).lower() for row in env_vars.table()}
    assert fields == set(env_vars.Settings.__dataclass_fields__)
