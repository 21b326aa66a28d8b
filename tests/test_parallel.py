"""Jobs beside the caller, in threads and in processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from functools import partial
from operator import truediv

import numpy as np
import pytest

from cachegen_cli.coding import choose, encode
from cachegen_cli.errors import InputError
from cachegen_cli.parallel import ahead, in_process, still_at_work
from cachegen_cli.parallel import processes as room

from test_counts import codes_of  # isort: skip


@pytest.fixture
def processes(monkeypatch):
    """Processes from the first call on, and none left behind."""
    fresh = room._Processes()
    fresh.spent = 1e9
    monkeypatch.setattr(room, "pool", fresh)
    monkeypatch.setattr(room, "CORES", 2)
    yield fresh
    fresh.stop()


def in_threads(function, *arguments):
    return list(ahead((partial(in_process, function, *given) for given in arguments), 2))


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_keep_the_order_of_the_jobs(workers):
    def job(place):
        time.sleep(0.01 * (place % 3))
        return place

    assert list(ahead((partial(job, place) for place in range(12)), workers)) == list(range(12))


def test_jobs_are_drawn_by_the_caller_and_no_more_wait_than_workers():
    drawn, running = [], []

    def jobs():
        for place in range(6):
            assert threading.current_thread() is threading.main_thread()
            drawn.append(place)
            yield partial(running.append, place)

    for done, _ in enumerate(ahead(jobs(), 2)):
        assert len(drawn) <= done + 3


def test_an_error_ends_the_rest():
    begun = []

    def job(place):
        begun.append(place)
        if place == 1:
            raise InputError("the second fails")
        return place

    with pytest.raises(InputError, match="the second fails"):
        list(ahead((partial(job, place) for place in range(50)), 1))
    assert len(begun) <= 3


def test_leaving_does_not_wait_for_what_runs():
    started, leave = time.perf_counter(), threading.Event()
    results = ahead([partial(leave.wait, wait) for wait in (0, 30, 30)], 2)
    next(results)
    results.close()
    assert time.perf_counter() - started < 10
    leave.set()  # a command that fails in the same process would end it with what still runs
    assert not still_at_work(10)


def test_calls_go_to_processes(processes):
    found = in_threads(os.getpid, *[()] * 6)
    assert os.getpid() not in found and 1 <= len(set(found)) <= 2
    assert in_process(os.getpid) == os.getpid()  # the caller's own need no other


def test_short_work_stays_here(processes):
    processes.spent = 0.0
    assert in_threads(os.getpid, (), ()) == [os.getpid()] * 2


def test_what_is_raised_there_is_raised_here(processes):
    with pytest.raises(ZeroDivisionError):
        in_threads(truediv, (1, 0))
    with pytest.raises(InputError) as error:
        in_threads(refuse, ("no", "try another"))
    assert (error.value.message, error.value.hint) == ("no", "try another")
    assert in_threads(truediv, (1, 2)) == [0.5]  # the process goes on


def refuse(message, hint):
    raise InputError(message, hint)


def test_a_process_that_dies_is_done_without(processes):
    in_threads(os.getpid, (), ())
    for process in processes._all:
        process._process.kill()
        process._process.wait()
    assert in_threads(truediv, (1, 2), (1, 4), (1, 8)) == [0.5, 0.25, 0.125]


def test_what_cannot_be_sent_says_so(processes):
    with pytest.raises(Exception, match="pickle"):
        in_threads(lambda: 1, ())
    assert in_threads(truediv, (1, 2)) == [0.5]


def test_streams_are_the_same_from_everywhere(processes):
    tensors = [codes_of(2, 32, 400, bits, bits).reshape(64, 400) for bits in (2, 4, 8)]
    choices = [choose(codes, bits) for codes, bits in zip(tensors, (2, 4, 8), strict=True)]
    given = list(zip(tensors, (2, 4, 8), choices, strict=True))
    assert in_threads(encode, *given) == [encode(*each) for each in given]


def test_arrays_and_long_bytes_come_back_as_they_are(processes):
    given = [np.arange(n, dtype=np.int16).reshape(shape) for n, shape in
             ((0, (0, 3)), (6, (2, 3)), (600_000, (3, 200_000)), (5, (5,)))]  # fmt: skip
    for array, found in zip(given, in_threads(np.negative, *((x,) for x in given)), strict=True):
        assert found.dtype == array.dtype and (found == -array).all()
    long = [bytes([n]) * n * 50_000 for n in range(5)]
    found = in_threads(bytes.upper, *((x,) for x in long))
    assert found == long and {type(x) for x in found} == {bytes}
    transposed = given[2].T
    assert (in_threads(np.negative, (transposed,))[0] == -transposed).all()


def test_without_room_for_arrays_work_is_done_here(processes, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    found = in_threads(np.negative, *[(np.arange(9),)] * 5)
    assert all((each == -np.arange(9)).all() for each in found)


def test_calls_wait_for_processes_and_end_with_them(processes):
    jobs = [partial(in_process, time.sleep, 0.01 * n) for n in range(9)]
    assert list(ahead(jobs, 5)) == [None] * 9 and len(processes._all) == 2
    waiting = ahead([partial(in_process, time.sleep, n) for n in (0, 30, 30, 30)], 4)
    next(waiting)
    waiting.close()
    assert not still_at_work(10)


def test_output_of_libraries_is_no_answer(processes):
    assert in_threads(print, ("noise",)) == [None]
    assert in_threads(np.add, (1, 2)) == [3]


def test_a_process_that_dies_in_the_midst_of_an_answer_is_done_without(processes):
    def kill():
        while not processes._all:
            time.sleep(0.001)
        for _ in range(40):
            time.sleep(0.01)
            for process in list(processes._all):
                process._process.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    found = in_threads(np.arange, *[(2_000_000,)] * 12)
    killer.join()
    assert all(len(each) == 2_000_000 and each[-1] == 1_999_999 for each in found)


def test_no_more_are_started_where_they_die(processes, monkeypatch):
    monkeypatch.setattr(room.sys, "executable", "/bin/true")
    assert in_threads(truediv, *[(1, 2)] * 9) == [0.5] * 9
    assert room._DEATHS <= processes.died <= room._DEATHS + 1 and not processes._all


def test_folders_with_modules_of_the_same_names_change_nothing(processes, tmp_path, monkeypatch):
    for name in ("numpy.py", "queue.py", "cachegen_cli/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("print('another')\n")
    monkeypatch.chdir(tmp_path)
    assert os.getpid() not in in_threads(os.getpid, (), ())


def test_an_error_while_threads_work_ends_as_an_error(tmp_path, captured):
    """Python stops threads at its end, in whatever they do."""
    from dataclasses import replace

    from made import layer

    from cachegen_cli.device import mx
    from cachegen_cli.kvcache import make_cache, save_cache

    layers = [layer(300, place=place) for place in range(2)]
    broken = mx.array(np.where(np.arange(64) == 3, np.inf, np.array(layers[1].values)))
    layers[1] = replace(layers[1], values=broken.astype(mx.float16))
    path = tmp_path / "inf.safetensors"
    save_cache(path, make_cache(layers), {})
    for scheme in ("mlx", "uniform", "group") * 2:
        command = [sys.executable, "-m", "cachegen_cli", "pack", "--scheme", scheme]
        command += ["--prompt-cache-file", path, "-o", tmp_path / "x.cgkv"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stderr.count("\n")) == (1, 2), done.stderr
        assert not list(tmp_path.glob("*.cgkv"))
