"""Work beside the caller's: jobs in threads, and long calls in processes of their own.

MLX and the order of results stay with the caller. Threads are enough for what numpy does
without Python's lock; the coder keeps the lock, so a thread may pass its calls to a process.
"""

from cachegen_cli.parallel.processes import CORES, in_process
from cachegen_cli.parallel.threads import ahead, still_at_work

CODERS = CORES + 1  # threads of coding work: while processes are at it, one prepares its call

__all__ = ["CODERS", "CORES", "ahead", "in_process", "still_at_work"]
