# SPDX-License-Identifier: Apache-2.0
"""Whose line a collective gets that no line of the script has led to."""

from __future__ import annotations

import _thread
import queue
import site
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torchtpu_distributed import stacks

LIBRARY = f"{site.getsitepackages()[0]}/library/saving.py"


def function_of_a_library() -> Any:
    names: dict[str, Any] = {"line": stacks.stand_in_line}
    exec(compile("def save():\n    return line()", LIBRARY, "exec"), names)
    return names["save"]


def test_thread_of_a_library_is_named_with_the_line_that_its_work_began_at():
    with ThreadPoolExecutor(1, thread_name_prefix="Saver") as pool:
        found = pool.submit(function_of_a_library()).result()
    assert found == f"{LIBRARY}:2 in save, on thread Saver_0"


def test_thread_that_python_has_not_started_has_the_line_of_the_main_thread():
    save, found = function_of_a_library(), queue.SimpleQueue()
    _thread.start_new_thread(lambda: found.put(save()), ())  # as autograd's, unknown to `threading`
    assert stacks.__file__ not in (line := found.get(timeout=10))
    assert line.endswith(
        f"in {test_thread_that_python_has_not_started_has_the_line_of_the_main_thread.__name__}"
    )


def test_stack_of_a_rank_ends_where_the_package_is_called():
    names: dict[str, Any] = {"stack": stacks.main_stack}
    file = str(Path(stacks.__file__).with_name("waiting.py"))
    exec(compile("def wait():\n    return stack()", file, "exec"), names)
    found = names["wait"]()
    assert found.endswith('    found = names["wait"]()\n')
