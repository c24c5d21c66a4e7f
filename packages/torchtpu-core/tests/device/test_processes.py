# SPDX-License-Identifier: Apache-2.0
"""Data loading workers, forked and spawned processes."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, TensorDataset


def _loader(**options):
    data = TensorDataset(torch.arange(8.0).reshape(8, 1), torch.arange(8))
    return DataLoader(data, batch_size=4, **options)


def test_data_loader_feeds_the_device():
    seen = [x.to("tpu").sum().item() for x, _ in _loader()]
    assert seen == [6.0, 22.0]


def test_data_loader_with_workers_feeds_the_device():
    seen = [y.to("tpu").tolist() for _, y in _loader(num_workers=2)]
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_data_loader_pins_memory_for_the_device():
    batches = list(_loader(pin_memory=True))
    assert all(x.is_pinned() for x, _ in batches)
    assert batches[1][0].to("tpu", non_blocking=True).tolist() == [[4.0], [5.0], [6.0], [7.0]]


def test_data_loader_generator_on_the_device_is_refused_or_shuffles():
    with torch.device("tpu"):
        order = torch.randperm(8)
    assert sorted(order.tolist()) == list(range(8))


def test_forked_child_of_a_used_device_is_told_to_spawn(run_python):
    done = run_python(
        """
        import os, torch
        torch.ones(2, device="tpu").add_(1)
        child = os.fork()
        if child == 0:
            try:
                torch.ones(2, device="tpu")
            except RuntimeError as error:
                print(torch.tpu._is_in_bad_fork(), error, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print(torch.ones(2, device="tpu").add_(1).tolist())
        """
    )
    assert "True Cannot re-initialize TPU in forked subprocess" in done.stdout
    assert "'spawn' start method" in done.stdout
    assert done.stdout.endswith("[2.0, 2.0]\n")


def test_forked_child_of_an_unused_device_works(run_python):
    done = run_python(
        """
        import os, torch
        print(torch.tpu.device_count(), flush=True)
        child = os.fork()
        if child == 0:
            print(torch.ones(2, device="tpu").tolist(), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        """
    )
    assert "[1.0, 1.0]" in done.stdout


def test_spawned_child_has_a_device_of_its_own(run_python, tmp_path):
    script = tmp_path / "spawned.py"
    script.write_text(
        "import torch\n"
        "import torch.multiprocessing as mp\n"
        "def work(i, queue):\n"
        "    queue.put((torch.ones(2, device='tpu') + i).tolist())\n"
        "if __name__ == '__main__':\n"
        "    torch.ones(2, device='tpu').add_(1)\n"
        "    queue = mp.get_context('spawn').Queue()\n"
        "    mp.spawn(work, args=(queue,), nprocs=1)\n"
        "    print(queue.get())\n"
    )
    done = run_python(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")
    assert done.stdout == "[1.0, 1.0]\n"


def test_process_ends_cleanly_with_work_under_way(run_python):
    done = run_python(
        """
        import torch
        x = torch.ones(64, 64, device="tpu")
        for _ in range(4):
            x = x @ x
        """
    )
    assert done.stderr == ""


def test_handler_at_exit_may_read_what_is_pending(run_python):
    done = run_python(
        """
        import atexit, torch
        x = torch.ones(3, device="tpu").mul_(2).cumsum(0)
        atexit.register(lambda: print(x.tolist()))
        """
    )
    assert (done.stdout, done.stderr) == ("[2.0, 4.0, 6.0]\n", "")


def test_end_of_a_process_runs_nothing_that_is_pending_on_any_device(run_python):
    done = run_python(
        'import torch; torch.ones(2, device="tpu").add_(1)',
        TORCH_TPU_TARGET="v5e:2x2",
        TORCH_TPU_LOG="flushes",
    )
    assert done.stderr == ""


def test_ctrl_c_while_a_program_starts_is_raised_though_its_ops_run_one_by_one(run_python):
    done = run_python(
        """
        import torch
        from torchtpu_core.runtime import transfers

        put, armed = transfers.put, False

        def interrupted(*args):
            global armed
            if armed:
                armed = False
                raise KeyboardInterrupt
            return put(*args)

        transfers.put = interrupted  # what is called as a program starts, if its numbers repeat

        def step(number):
            x = torch.ones(64, device="tpu")
            return ((x * number + 2.5).sin() * 0.5).sum().item()

        for _ in range(12):
            step(1.5)
        torch.tpu.wait_for_compiles()
        right = [step(number) for number in (1.5, 1.5, 1.5, 2.0)][-1]
        armed = True
        try:
            for number in range(3, 99):
                step(float(number)), step(float(number))
                torch.tpu.wait_for_compiles()
        except KeyboardInterrupt:
            print("raised", armed, abs(step(2.0) - right) < 1e-4)
        """,
        TORCH_TPU_CACHE_DIR="",
    )
    assert done.stdout == "raised False True\n"
