"""python -m cachegen_cli.worker: calls what `parallel` tells it to, until its input ends."""

from __future__ import annotations

import os
import pickle
import sys


def main() -> None:
    """Read (function, arguments) from stdin, write (whether it returned, what) to stdout."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    questions = sys.stdin.buffer
    while True:
        try:
            function, args = pickle.load(questions)
        except EOFError:
            return
        try:
            answer = True, function(*args)
        except Exception as error:
            answer = False, error
        try:
            pickle.dump(answer, answers, protocol=5)
            answers.flush()
        except BrokenPipeError:  # nobody is there any more
            os._exit(0)


if __name__ == "__main__":
    main()
