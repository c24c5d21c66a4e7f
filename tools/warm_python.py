# SPDX-License-Identifier: Apache-2.0
"""Python processes for tests, forked from one that has imported torch, Dynamo, JAX and the device.

A test's process takes 5 s of CPU time to its first operator on a slow machine, 4 of them for
imports that are the same in all of them. `Popen` is `subprocess.Popen`, which forks instead if the
command is ``python -c TEXT`` or ``python SCRIPT`` and its environment differs in nothing that is
read before. The fork then starts as an interpreter does: arguments, path, standard streams,
backends of torch. It ends as one, too. Tests of imports and of the start use `subprocess`.

The caller becomes its parent: it is an orphan from its birth, and `PR_SET_CHILD_SUBREAPER` decides
who gets orphans.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: What processes of tests import, and takes long. The device's modules are loaded, not started.
_TAKE_LONG = (
    *("torch", "jax", "torch._dynamo", "torch.distributed.pipelining", "typer", "rich"),
    *("torch.distributed.tensor.experimental", "fsspec", "jax.extend.pallas"),
    *("jax.experimental.serialize_executable", "jax.experimental.shard_map"),
    *("torchtpu_core.runtime.startup", "torchtpu_distributed.backend"),
)
#: Variables that the interpreter, torch, JAX or their libraries read when they are loaded.
_EARLY = (
    *("PYTHON", "PYTORCH_", "TORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "JAX_", "XLA_", "TF_"),
    *("OMP_", "MKL_", "OPENBLAS_", "LD_", "MALLOC_"),
)
#: But for these; the last three are set by JAX and torch themselves.
_LATE = (
    *("PYTHONPATH", "TORCH_TPU_", "TORCH_DEVICE_BACKEND_AUTOLOAD"),
    *("TF_CPP_MIN_LOG_LEVEL", "TORCH_WARM_POOL", "TORCHINDUCTOR_CACHE_DIR"),
)
_SUBREAPER = 36
_MESSAGE_BYTES = 1 << 17


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """A process, forked if that is as good."""

    def _execute_child(self, args: Any, *rest: Any) -> None:
        (_, preexec, _, passed, cwd, env, _, _, shell, *pipes) = rest
        (read_in, _, _, write_out, _, write_err, _, *ids, new_session, process_group) = pipes
        environment = dict(os.environ if env is None else env)
        usual = preexec is None and not passed and not shell and process_group == -1
        usual = usual and all(one in (None, -1) for one in ids)
        if not (usual and _is_plain(args) and _SERVER.suits(environment)):
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        request = {
            "args": [os.fspath(one) for one in args[1:]],
            "env": environment,
            "cwd": os.fspath(cwd or Path.cwd()),
            "session": bool(new_session),
        }
        streams = [
            pipe if pipe != -1 else own for own, pipe in enumerate((read_in, write_out, write_err))
        ]
        self.pid = _SERVER.fork(request, streams)
        self._child_created = True
        self._close_pipe_fds(*pipes[:6])  # type: ignore[attr-defined]


def run(args: Sequence[Any], **options: Any) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` of text, with captured output and one thread, by `Popen`."""
    timeout_s = options.pop("timeout", None)
    options.setdefault("env", {**os.environ, "OMP_NUM_THREADS": "1"})
    pipe = subprocess.PIPE
    with Popen(args, stdout=pipe, stderr=pipe, text=True, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(args, process.returncode, out, err)


def _is_plain(args: Any) -> bool:
    """Whether a command is this Python with a text or a script."""
    if isinstance(args, str | bytes) or len(args) < 2 or args[0] != sys.executable:
        return False
    first = os.fspath(args[1])
    return first == "-c" or not first.startswith("-")


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_EARLY) and not name.startswith(_LATE)
    }


class _Server:
    """The process that forks; started when it is first wanted, it ends with its parent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._environment: dict[str, str] = {}

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Whether a process of an environment may be a fork."""
        if not hasattr(socket, "SOCK_SEQPACKET") or not sys.platform.startswith("linux"):
            return False
        with self._lock:
            if self._control is None:
                self._start()
        return _early(environment) == self._environment

    def fork(self, request: Mapping[str, Any], streams: Sequence[int]) -> int:
        """The process identifier of a new child of this process."""
        assert self._control is not None
        with self._lock:
            _adopt_orphans(True)
            try:
                socket.send_fds(self._control, [json.dumps(request).encode()], list(streams))
                answer = self._control.recv(64)
            finally:
                _adopt_orphans(False)
        if not answer:
            raise RuntimeError("the process that forks has ended: its stderr, above, says why")
        return int(answer)

    def _start(self) -> None:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        environment.pop("PYTHONPATH", None)
        with its:
            subprocess.Popen(
                [sys.executable, __file__, str(its.fileno())],
                env=environment,
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self._control, self._environment = ours, _early(environment)


_SERVER = _Server()


def _adopt_orphans(on: bool) -> None:
    ctypes.CDLL(None).prctl(_SUBREAPER, int(on), 0, 0, 0)


def _is_there(name: str) -> bool:
    """Whether a module's distribution is installed: not all are in tox's environments."""
    return importlib.util.find_spec(name.partition(".")[0]) is not None


def _serve(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork at each request; returns in the children, with what is asked of them."""
    for name in filter(_is_there, _TAKE_LONG):
        importlib.import_module(name)
    from torchtpu_core.runtime import tables

    for _ in tables.core_rows():
        pass
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        message, streams, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 3)
        if not message:
            os._exit(0)
        read, write = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                for one in (read, write):
                    os.close(one)
                control.close()
                return json.loads(message), streams
            os.write(write, str(child).encode())
            os._exit(0)
        os.waitpid(between, 0)
        control.send(os.read(read, 64))
        for one in (read, write, *streams):
            os.close(one)


def _become(request: dict[str, Any], streams: list[int]) -> tuple[types.CodeType, types.ModuleType]:
    """Take on what the process was asked to be; its code and main module."""
    if request["session"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, max(streams) + 1)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    first, *rest = request["args"]
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if first == "-c":
        text, name, folder = rest.pop(0), "<string>", ""
    else:
        text, name, folder = Path(first).read_bytes(), first, str(Path(first).resolve().parent)
        main.__file__ = first
    sys.argv = [first, *rest]
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:1] = [folder, *paths]
    sys.modules["__main__"] = main
    import numpy as np
    import torch

    np.random.seed()
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1":
        torch._import_device_backends()  # type: ignore[attr-defined]
    return compile(text, name, "exec"), main


if __name__ == "__main__":
    _code, _main = _become(*_serve(socket.socket(fileno=int(sys.argv[1]))))
    exec(_code, _main.__dict__)
