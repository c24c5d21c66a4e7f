# SPDX-License-Identifier: Apache-2.0
"""`torchtpu cache`: what it prints, removes and refuses."""

from __future__ import annotations

import errno
import os
import time
import zipfile

import pytest
from torchtpu_core import env_vars
from torchtpu_core.cache import Entry, Kind, encode
from torchtpu_core.cache.directory import DirectoryStore
from torchtpu_core.cli import make_app
from torchtpu_core.runtime import fingerprints
from typer.testing import CliRunner


def _key(number: int) -> str:
    return f"{number:064x}"


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A directory with the programs add (used last), mul and old, of this platform."""
    monkeypatch.setenv("TORCH_TPU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_TPU_CACHE_URL", f"file://{tmp_path}/shared")
    env_vars.reset()
    store = DirectoryStore(tmp_path / "cache", 1 << 30)
    for number, name in enumerate(("add", "mul", "old")):
        entry = Entry(
            key=_key(number),
            kind=Kind.EXECUTABLE,
            name=name,
            host=fingerprints.host(),
            payload=bytes(5000),
        )
        store.put(entry.key, encode(entry))
        used = time.time() - number * 20 * 24 * 3600
        os.utime(store._path(entry.key), (used, used))
    yield store
    monkeypatch.undo()
    env_vars.reset()


def _run(*arguments: str):
    return CliRunner().invoke(make_app(), ["cache", *arguments])


def _names(store: DirectoryStore) -> set[str]:
    return {store.header(stored.key).name for stored in store.entries()}


def test_ls_lists_programs_the_last_used_first(store) -> None:
    lines = _run("ls").output.splitlines()
    assert [line.split()[0] for line in lines] == ["program", "add", "mul", "old"]
    assert "20 d ago" in lines[2]
    assert len(_run("ls", "--match", "mul").output.splitlines()) == 2


def test_stats_counts_entries_and_bytes(store) -> None:
    shown = _run("stats").output
    total = sum(stored.size_bytes for stored in store.entries())
    assert f"{total / 1024:.2f} KiB" in shown
    rows = dict(line.split(maxsplit=1) for line in shown.splitlines() if line.strip())
    assert (rows["entries"].strip(), rows["executables"].strip()) == ("3", "3")


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ((), {"add", "mul", "old"}),
        (("--limit", "6000"), {"add"}),
        (("--limit", "6KiB"), {"add"}),
        (("--older-than-days", "30"), {"add", "mul"}),
        (("--all",), set()),
    ],
)
def test_prune_removes_what_the_options_say(store, options, left) -> None:
    assert _run("prune", *options).exit_code == 0
    assert _names(store) == left


def test_prune_of_a_bad_size_is_refused(store) -> None:
    assert _run("prune", "--limit", "much").exit_code == 2


def test_verify_finds_and_removes_the_damaged(store) -> None:
    assert _run("verify").exit_code == 0
    path = store._path(_key(1))
    path.write_bytes(path.read_bytes()[:-1])
    shown = _run("verify")
    assert shown.exit_code == 1
    assert "checksum" in shown.output
    assert _run("verify", "--fix").exit_code == 0
    assert _names(store) == {"add", "old"}


def test_verify_takes_a_trace_without_executable_for_no_damage(store) -> None:
    entry = Entry(
        key=_key(9),
        kind=Kind.TRACE,
        name="add",
        host=fingerprints.host(),
        facts={"executable": _key(8)},
        payload=b"",
    )
    store.put(entry.key, encode(entry))
    shown = _run("verify")
    assert shown.exit_code == 0
    assert "4 entries, 0 damaged, 1 without executable." in shown.output
    assert "removed" in _run("verify", "--fix").output
    assert len(_names(store)) == 3


def test_pack_and_unpack_restore_what_was_pruned(store, tmp_path) -> None:
    assert "3 entries" in _run("pack", str(tmp_path / "p")).output
    _run("prune", "--all")
    assert "3 entries" in _run("unpack", str(tmp_path / "p")).output
    assert _names(store) == {"add", "mul", "old"}


def test_unpack_of_another_platforms_pack_exits_with_what_differs(store, tmp_path, monkeypatch):
    facts = fingerprints.host_facts() | {"jaxlib": "0.0.1"}
    with monkeypatch.context() as patched:
        patched.setattr(fingerprints, "host_facts", lambda: facts)
        patched.setattr(fingerprints, "host", lambda: "elsewhere")
        _run("pack", str(tmp_path / "p"))
    shown = _run("unpack", str(tmp_path / "p"))
    assert shown.exit_code == 1
    assert "jaxlib: 0.0.1 there" in shown.output


def test_shared_commands_act_on_the_shared_root(store, tmp_path) -> None:
    from torchtpu_core.cache.shared import SharedStore

    shared = SharedStore(f"file://{tmp_path}/shared")
    shared.put(_key(0), store.read(_key(0)))
    assert "entries" in _run("stats", "--shared").output
    listed = _run("ls", "--shared").output.splitlines()
    assert [line.split()[0] for line in listed] == ["program", "add"]
    assert _run("verify", "--shared").output.startswith("key")
    assert "Removed 1 entries" in _run("prune", "--all", "--shared").output
    assert not list(shared.entries())
    assert len(_names(store)) == 3


@pytest.mark.parametrize("command", ["ls", "stats", "verify", "prune"])
def test_a_shared_root_that_does_not_answer_is_named(store, monkeypatch, command) -> None:
    monkeypatch.setenv("TORCH_TPU_CACHE_URL", "ftp://127.0.0.1:1/programs")
    env_vars.reset()
    shown = _run(command, "--shared")
    assert shown.exit_code == 1
    assert shown.output.startswith("torchtpu cache: ")
    assert "refused" in shown.output


@pytest.mark.parametrize("command", ["pack", "unpack"])
def test_full_disk_names_what_could_not_be_written(store, tmp_path, monkeypatch, command) -> None:
    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    pack = tmp_path / "p"
    if command == "unpack":
        assert _run("pack", str(pack)).exit_code == 0
        monkeypatch.setattr(DirectoryStore, "put", full)
    else:
        monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    shown = _run(command, str(pack))
    assert shown.exit_code == 1
    place = pack if command == "pack" else tmp_path / "cache"
    assert repr(str(place)) in shown.output.replace("\n", "")


def test_commands_without_a_directory_say_so(monkeypatch) -> None:
    monkeypatch.setenv("TORCH_TPU_CACHE_DIR", "")
    env_vars.reset()
    shown = _run("ls")
    monkeypatch.undo()
    env_vars.reset()
    assert shown.exit_code == 1
    assert "TORCH_TPU_CACHE_DIR is empty" in shown.output


@pytest.mark.slow
def test_build_packs_standard_operators(store, tmp_path) -> None:
    pytest.importorskip("torchtpu_eager", reason="ops need an execution mode")
    shown = _run("build", str(tmp_path / "p"), "--match", "log_softmax")
    assert shown.exit_code == 0, shown.output
    _run("prune", "--all")
    _run("unpack", str(tmp_path / "p"))
    assert "_log_softmax" in _names(store)
