"""Jobs in threads beside the caller."""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from cachegen_cli.parallel import processes

T = TypeVar("T")

_threads: set[threading.Thread] = set()


def ahead(jobs: Iterable[Callable[[], T]], workers: int = 1) -> Iterator[T]:
    """What jobs return, in their order, each run in a thread beside the caller.

    Jobs are drawn by the caller; at most ``workers`` of them wait or run meanwhile. An
    exception, theirs or the caller's, ends the rest and what runs in processes.
    """
    waiting: deque[Future[T]] = deque()
    tasks: SimpleQueue[tuple[Future[T], Callable[[], T]] | None] = SimpleQueue()
    for _ in range(workers):
        # daemons, since an interrupted run does not wait for what they do
        thread = threading.Thread(target=_work, args=(tasks,), daemon=True)
        _threads.add(thread)
        thread.start()
    try:
        for job in jobs:
            if len(waiting) >= workers:
                yield waiting.popleft().result()
            waiting.append(Future())
            tasks.put((waiting[-1], job))
            del job
        while waiting:
            yield waiting.popleft().result()
    finally:
        unfinished = [future for future in waiting if not future.cancel() and not future.done()]
        if unfinished:
            processes.pool.stop()
        for _ in range(workers):
            tasks.put(None)


def _work(tasks: SimpleQueue[tuple[Future[T], Callable[[], T]] | None]) -> None:
    """Do jobs until there are none."""
    while (task := tasks.get()) is not None:
        future, job = task
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)
        del task, future, job  # nothing of them is to live until the next one
    _threads.discard(threading.current_thread())


def still_at_work(seconds: float) -> bool:
    """Whether threads go on with what nobody wants any more, after waiting so long for them.

    Python must not end before them: it would stop them in the midst of compiled code.
    """
    until = time.monotonic() + seconds
    for thread in list(_threads):
        thread.join(max(until - time.monotonic(), 0))
    return any(thread.is_alive() for thread in list(_threads))


atexit.register(still_at_work, 5)
atexit.register(processes.pool.stop)  # first: a thread may wait for one
