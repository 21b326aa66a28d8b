"""python -m cachegen_cli.worker: calls what `parallel` tells it to, until its input ends."""

from __future__ import annotations

import os
import pickle
import sys


def main() -> None:
    """Read (function, arguments) from stdin, write (whether it returned, what), behind the length
    of that, to stdout.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    questions = sys.stdin.buffer
    while True:
        try:
            function, args = pickle.load(questions)
        except EOFError:
            return
        try:
            found = True, function(*args)
        except Exception as error:
            found = False, error
        answer = pickle.dumps(found, protocol=5)
        try:
            answers.write(len(answer).to_bytes(8, "little"))
            answers.write(answer)
            answers.flush()
        except BrokenPipeError:  # nobody is there any more
            os._exit(0)


if __name__ == "__main__":
    main()
