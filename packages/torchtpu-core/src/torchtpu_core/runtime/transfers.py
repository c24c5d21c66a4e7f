# SPDX-License-Identifier: Apache-2.0
"""Between host memory and the device.

What goes up is copied before the call returns, since the user may write the source
at once. What comes down is read in place where the device's memory is host memory.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.errors import JaxRuntimeError
from jax.sharding import SingleDeviceSharding
from jaxlib import xla_client

from torchtpu_core import plugins
from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.storage_views import Geometry, _flat
from torchtpu_core.runtime import clients, host_only, memory

_MOST_DIMS = 64  # of PyTorch's reductions, and of NumPy, which reads the host's memory


def to_device(tensor: torch.Tensor, device: int) -> jax.Array:
    """A contiguous CPU tensor as an array on a device; the tensor may be written afterwards."""
    if tensor.ndim > _MOST_DIMS:
        raise RuntimeError(
            f"only tensors with up to {_MOST_DIMS} dims are supported on tpu, got {tensor.ndim}: "
            "reshape it before it is copied to the device"
        )
    host_only.refuse_dtype("aten::_to_copy", tensor.dtype)
    return put(truths(host_view(tensor)), device)


def truths(array: np.ndarray) -> np.ndarray:
    """Truths of any bytes as 0 and 1, other values as they are.

    PyTorch takes any byte but 0 for true, XLA only 1.
    """
    return array.view(np.uint8) != 0 if array.dtype == np.bool_ else array


def host_view(tensor: torch.Tensor) -> np.ndarray:
    """A contiguous CPU tensor of any dtype as an array; valid as long as the tensor."""
    # Not tensor.numpy(): from then on PyTorch would refuse to resize the user's tensor.
    memory = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    return np.ndarray(tensor.shape, dtypes.to_numpy(tensor.dtype), memory)


def put(host: np.ndarray, device: int) -> jax.Array:
    """A NumPy array copied to a device, keeping 64-bit types."""
    return put_on(host, clients.sharding(device))


def put_on(host: np.ndarray, sharding: SingleDeviceSharding) -> jax.Array:
    """A NumPy array copied to one device of any client, keeping 64-bit types."""
    return xla_client.batched_device_put(
        _aval(host.shape, host.dtype),
        sharding,
        [host],
        _devices(sharding),
        committed=True,
        force_copy=True,
        host_buffer_semantics=xla_client.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL,
        enable_x64=True,
    )


@functools.lru_cache(maxsize=4096)
def _aval(shape: tuple[int, ...], dtype: np.dtype) -> jax.core.ShapedArray:
    """To make one takes JAX as long as to copy a small array."""
    return jax.core.ShapedArray(shape, dtype)


@functools.lru_cache(maxsize=256)
def _devices(sharding: SingleDeviceSharding) -> list[Any]:
    return list(sharding.device_set)


def to_other_device(array: jax.Array, device: int) -> jax.Array:
    """The array on another device of this process."""
    return jax.device_put(array, clients.sharding(device))


def host_buffer(array: jax.Array) -> tuple[int, Any]:
    """Address of the array's elements in row-major order, and what keeps it valid."""
    _block(array)
    if array.platform() == "cpu":
        return array.unsafe_buffer_pointer(), array
    host = np.asarray(array)
    return host.__array_interface__["data"][0], host


def zeros(sizes: Sequence[int], dtype: torch.dtype, device: int) -> jax.Array:
    """Zeros on a device."""
    host_only.refuse_dtype("aten::zeros", dtype)
    return put(np.zeros(tuple(sizes), dtypes.to_numpy(dtype)), device)


def resized(array: jax.Array, geometry: tuple[Any, ...], numel: int) -> jax.Array:
    """The elements of a storage in memory order, cut or zero-padded to `numel`."""
    with jax.enable_x64(True):
        flat = _flat(array, Geometry(*geometry))[:numel]
        return jnp.pad(flat, (0, numel - flat.size))


def wait(array: jax.Array) -> None:
    """Block until the array is computed."""
    if not array.is_deleted():
        _block(array)


def _block(array: jax.Array) -> None:
    if plugins.manager().hook.torchtpu_host_wait(array=array) is None:
        try:
            array.block_until_ready()
        except JaxRuntimeError as error:
            memory.raise_of_run(error)


def is_ready(array: jax.Array) -> bool:
    """Whether the array is computed."""
    return array.is_deleted() or array.is_ready()
