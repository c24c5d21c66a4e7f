# SPDX-License-Identifier: Apache-2.0
"""The exception classes: what they derive from and what they say."""

from __future__ import annotations

import doctest
import inspect
import pickle
import subprocess
import sys

import pytest
from torchtpu_core import errors

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, errors.TorchTPUError)
]


def test_errors_doctests_pass() -> None:
    assert doctest.testmod(errors).failed == 0


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (errors.DeviceIndexError, RuntimeError),
        (errors.UnsupportedOpError, NotImplementedError),
        (errors.FallbackRefusedError, RuntimeError),
        (errors.MissingExtraError, ImportError),
        (errors.TargetError, ValueError),
        (errors.EnvironmentVariableError, ValueError),
        (errors.MeshShapeError, ValueError),
        (errors.DeferredIndexError, IndexError),
    ],
)
def test_error_is_caught_as_the_class_users_catch(error, base) -> None:
    with pytest.raises(base):
        raise error("what happened")


@pytest.mark.parametrize("error", CLASSES)
def test_error_survives_pickling_between_ranks(error) -> None:
    copy = pickle.loads(pickle.dumps(error("what happened")))
    assert type(copy) is error
    assert str(copy) == "what happened"


@pytest.mark.parametrize("error", CLASSES)
def test_error_docstring_says_how_to_fix(error) -> None:
    assert "Fix:" in inspect.getdoc(error)


def test_missing_extra_gives_the_pip_command() -> None:
    error = errors.MissingExtraError.for_extra("eager", "torch_tpu.eager")
    assert "pip install 'torchtpu-core[eager]'" in str(error)


def test_device_index_error_states_the_valid_indices() -> None:
    message = str(errors.DeviceIndexError.for_index(7, 4, "v5e:2x2"))
    assert "tpu:7" in message
    assert "0 to 3" in message
    assert "v5e:2x2" in message


def test_device_index_error_without_devices_names_no_range() -> None:
    assert "No index is valid" in str(errors.DeviceIndexError.for_index(0, 0))


def test_mode_missing_names_disabled_plugins() -> None:
    message = str(errors.ModeMissingError.for_op("aten::add.Tensor", ["eager"]))
    assert "TORCH_TPU_DISABLE_PLUGINS has turned off: eager" in message


def test_fallback_refused_names_operator_reason_and_line() -> None:
    message = str(errors.FallbackRefusedError.for_op("aten::foo", "no kernel", "train.py:3"))
    assert all(part in message for part in ("aten::foo", "no kernel", "train.py:3"))


def test_deferred_index_error_names_the_line_of_the_call() -> None:
    assert "model.py:12" in str(errors.DeferredIndexError.at_call("index out", "model.py:12"))


def test_plugin_error_tells_how_to_disable_it() -> None:
    message = str(errors.PluginError.for_plugin("acme", "it raised KeyError"))
    assert "TORCH_TPU_DISABLE_PLUGINS=acme" in message


def test_unsupported_op_names_the_overload() -> None:
    assert "aten::foo.out" in str(errors.UnsupportedOpError.for_op("aten::foo.out"))


def test_nearest_ignores_case_and_keeps_the_known_spelling() -> None:
    assert errors.nearest("torch_tpu_targt", ["TORCH_TPU_LOG", "TORCH_TPU_TARGET"]) == [
        "TORCH_TPU_TARGET"
    ]


def test_did_you_mean_without_a_near_name_is_empty() -> None:
    assert errors.did_you_mean("xyz", ["TORCH_TPU_TARGET"]) == ""


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("errors", ("torch", "jax", "numpy")),
        ("targets", ("torch", "jax", "numpy")),
        ("ici", ("torch", "jax", "numpy")),
        ("ici.model", ("torch", "jax")),
        ("ici.link_level", ("torch", "jax")),
        ("ici.mesh", ("torch", "jax")),
        ("simulator", ("torch", "jax")),
    ],
)
def test_modules_without_device_code_import_nothing_heavy(module, absent) -> None:
    code = (
        f"import sys, torchtpu_core.{module};"
        f"print([name for name in {absent!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
