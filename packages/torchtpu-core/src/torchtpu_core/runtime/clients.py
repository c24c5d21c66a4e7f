# SPDX-License-Identifier: Apache-2.0
"""The PJRT client behind the device.

A simulated target and `cpu` get a CPU client of their own, with as many devices as
the target has on this host: the user's JAX is neither configured nor disturbed. A
plugin may make that client (hook ``torchtpu_cpu_client``), such as one that reaches the
devices of other processes. A real TPU can be opened only once per process, so there
JAX's own client is shared.
"""

from __future__ import annotations

import threading
from typing import Any

from jax.sharding import SingleDeviceSharding
from jaxlib import xla_client

from torchtpu_core import plugins
from torchtpu_core.runtime.current import target
from torchtpu_core.targets import TargetKind

_lock = threading.Lock()
_client: Any = None
_shardings: list[SingleDeviceSharding] = []


def client() -> Any:
    """The client, made at first use."""
    global _client
    if _client is None:
        with _lock:
            if _client is None:
                _client = _make_client()
    return _client


def _make_client() -> Any:
    if target().target.kind is TargetKind.TPU:
        import jax

        return jax.devices("tpu")[0].client
    count = target().device_count
    made = plugins.manager().hook.torchtpu_cpu_client(device_count=count)
    if made is not None:
        return made
    return xla_client.make_cpu_client(asynchronous=True, num_devices=count)


def is_made() -> bool:
    """Whether the client exists already."""
    return _client is not None


def devices() -> list[Any]:
    """PJRT devices of this process, in the order of torch's indices."""
    return list(client().local_devices())


def sharding(device: int) -> SingleDeviceSharding:
    """The placement on one device."""
    if not _shardings:
        _shardings.extend(SingleDeviceSharding(d) for d in devices())
    return _shardings[device]


def real_tpu_device_count() -> int:
    """Number of devices of the TPU in this host; opens it."""
    import jax

    return len([d for d in jax.local_devices() if d.platform == "tpu"])


def platform_version() -> str:
    """What compiled programs depend on, such as the CPU features: part of cache keys."""
    return str(client().platform_version)
