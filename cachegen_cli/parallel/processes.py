"""Long calls in processes of their own, which are kept for the next."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, TypeVar, cast

from cachegen_cli.parallel.exchange import Exchange, Message, message, shared_file

T = TypeVar("T")

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_DEATHS = 3  # of processes, after which none is started any more
_WORTH_SECONDS = 0.5  # of calls done here, after which starting processes will pay


def in_process(function: Callable[..., T], *args: Any) -> T:
    """Call a function, from a job in a process of its own once such calls have taken long.

    Args:
        function: of a module, with arguments that can be pickled. Arrays that it returns may
            not be written to.
    """
    if threading.current_thread() is threading.main_thread() or not pool.pay():
        return _here(function, args)
    # a process is taken for no longer than it takes to ask, work and answer
    question = message((function, args))
    process = pool.take()
    if process is None:
        return _here(function, args)
    try:
        pickled, arrays = process.ask(question)
    except BaseException as error:
        process.stop()
        if pool.forgotten(process):
            raise RuntimeError("the work was ended") from error
        if not isinstance(error, OSError | EOFError):
            raise
        return function(*args)  # the system ended it, perhaps in the midst of an answer
    pool.give(process)
    done, value = pickle.loads(pickled, buffers=arrays)
    if not done:
        raise value
    found: T = value
    return found


def _here(function: Callable[..., T], args: tuple[Any, ...]) -> T:
    started = time.perf_counter()
    result = function(*args)
    pool.spent += time.perf_counter() - started
    return result


class _Process:
    """A Python that calls what it is told to (`worker`)."""

    def __init__(self) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        file = shared_file()
        # -P: the caller's path, not its folder
        command = [sys.executable, "-P", "-m", "cachegen_cli.parallel.worker", str(file.fileno())]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            pass_fds=[file.fileno()],
            start_new_session=True,  # Ctrl-C is for the caller alone
        )
        questions = cast(IO[bytes], self._process.stdin)
        answers = cast(IO[bytes], self._process.stdout)
        self._exchange = Exchange(answers, questions, file, keeps=False)

    def ask(self, question: Message) -> tuple[bytes, list[Any]]:
        """What answers (function, arguments); OSError or EOFError where nothing comes."""
        self._exchange.send(question)
        return self._exchange.receive()

    def stop(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()


class _Processes:
    """As many processes as there are cores, started when they are first needed and kept."""

    def __init__(self) -> None:
        self.spent, self.died, self._stops = 0.0, 0, 0
        self._changed = threading.Condition()
        self._all: list[_Process] = []
        self._idle: list[_Process] = []

    def pay(self) -> bool:
        """Whether work is worth them."""
        return self.spent >= _WORTH_SECONDS and CORES > 1

    def take(self) -> _Process | None:
        """One that is idle, once there is; None where work should be done by the caller.

        Raises:
            RuntimeError: all were ended meanwhile.
        """
        with self._changed:
            stops = self._stops
            while not self._idle:
                if len(self._all) < CORES and self.died < _DEATHS:
                    # OSError: no Python to start, or no room for another process
                    with suppress(OSError):
                        self._all.append(_Process())
                        return self._all[-1]
                if not self._all:
                    return None
                self._changed.wait()
                if self._stops > stops:
                    raise RuntimeError("the work was ended")
            return self._idle.pop()

    def give(self, process: _Process) -> None:
        """Take one back."""
        with self._changed:
            if process in self._all:
                self._idle.append(process)
                self._changed.notify()

    def forgotten(self, process: _Process) -> bool:
        """Forget one; whether `stop` did already."""
        with self._changed:
            if process not in self._all:
                return True
            self._all.remove(process)
            self.died += 1
            self._changed.notify_all()
            return False

    def stop(self) -> None:
        """End all."""
        with self._changed:
            ended, self._all, self._idle = self._all, [], []
            self._stops += 1
            self._changed.notify_all()
        for process in ended:
            process.stop()


pool = _Processes()
