# SPDX-License-Identifier: Apache-2.0
"""Checks of the running device: registration, target, plugins, settings, one program."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from torchtpu_core import env_vars, huge_pages, plugins
from torchtpu_core.cli.findings import Finding, Level, error, warning
from torchtpu_core.errors import TorchTPUError


def settings() -> Iterator[Finding]:
    """The ``TORCH_TPU_*`` variables that are set."""
    try:
        plugins.manager()  # plugins declare variables of their own
        env_vars.settings()
    except TorchTPUError as failure:
        yield error("environment", str(failure), "correct or unset the variable")
        return
    import os

    found = [f"{row.name}={os.environ[row.name]}" for row in env_vars.table()
             if row.name in os.environ]  # fmt: skip
    yield Finding(topic="environment", text=", ".join(found) or "no TORCH_TPU_* variable is set")


def memory() -> Iterator[Finding]:
    """Whether malloc asks for huge pages."""
    tunables = huge_pages.missing()
    if tunables is not None:
        yield Finding(
            topic="memory",
            text="malloc does not ask for huge pages; programs that run on the host are faster if "
            "it does",
            fix=f"start Python with {huge_pages.VARIABLE}={tunables}",
        )


def registration() -> Iterator[Finding]:
    """Whether `import torch` registered the device."""
    import torch

    try:
        from torchtpu_core import _C  # noqa: F401 - does the extension load?
    except ImportError as failure:
        yield error(
            "extension",
            f"torchtpu_core._C does not load: {failure}",
            "reinstall torchtpu-core in this environment; it is built for one version of torch",
        )
        return
    name = torch._C._get_privateuse1_backend_name()
    if hasattr(torch, "tpu"):
        yield Finding(topic="registration", text="'import torch' registers device 'tpu'")
    elif name != "privateuseone":
        yield error(
            "registration",
            f"another backend, {name!r}, took PyTorch's one PrivateUse1 slot",
            "uninstall one of the two packages",
        )
    else:
        yield warning(
            "registration",
            "'import torch' did not register device 'tpu'",
            "unset TORCH_DEVICE_BACKEND_AUTOLOAD and TORCH_TPU_DISABLE_AUTOLOAD",
        )


def loaded_plugins() -> Iterator[Finding]:
    """Each plugin and whether it loaded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", plugins.PluginWarning)
        records = plugins.records()
    for record in records:
        text = f"{record.name} of {record.distribution}: {record.status}"
        if record.status == "failed":
            yield warning(
                "plugin",
                f"{text} ({record.error})",
                f"update or uninstall it, or set TORCH_TPU_DISABLE_PLUGINS={record.name}",
            )
        else:
            yield Finding(topic="plugin", text=text)


def device() -> Iterator[Finding]:
    """The target, its devices, and one program on it."""
    import torch

    if not hasattr(torch, "tpu"):
        return
    try:
        properties = torch.tpu.get_device_properties()
        count = torch.tpu.device_count()
        kind = "simulated" if properties.simulated else "not simulated"
        yield Finding(
            topic="target",
            text=f"{properties.target}: {count} device(s), {properties.name}, "
            f"{properties.total_memory / 2**30:.2f} GiB each ({kind})",
        )
        result = (torch.arange(3, device="tpu") + 1).tolist()
    except Exception as failure:
        yield error(
            "device",
            f"{type(failure).__name__}: {failure}",
            "see the message; `torchtpu env` lists the settings",
        )
        return
    level = Level.OK if result == [1, 2, 3] else Level.ERROR
    yield Finding(topic="device", text=f"arange(3) + 1 gives {result}", level=level)
