"""A process that calls what `processes` tells it to, until its input ends."""

from __future__ import annotations

import os
import pickle
import sys

from cachegen_cli.parallel.exchange import Exchange, light, message


def main() -> None:
    """Read (function, arguments) from stdin, write (whether it returned, what) to stdout."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    file = os.fdopen(int(sys.argv[1]), "r+b", buffering=0)
    exchange = Exchange(sys.stdin.buffer, answers, file, keeps=True)
    while True:
        try:
            pickled, arrays = exchange.receive()
        except EOFError:
            return
        try:
            function, args = pickle.loads(pickled, buffers=arrays)
            found = message((True, light(function(*args))))
        except Exception as error:
            found = message((False, error))
        try:
            exchange.send(found)
        except OSError:  # nobody is there any more, or no room for arrays
            os._exit(1)


if __name__ == "__main__":
    main()
