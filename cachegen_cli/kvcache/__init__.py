"""Keys and values of each cache entry, out of a live mlx-lm cache or a file, and back.

The only room that knows mlx-lm's cache classes and the layouts of its files.
"""

from cachegen_cli.kvcache.entries import read_cache, read_entry
from cachegen_cli.kvcache.files import CacheFile
from cachegen_cli.kvcache.layers import LayerKV, Stored, join, split
from cachegen_cli.kvcache.live import fork, make_cache, untouched
from cachegen_cli.kvcache.roles import Ranks, assign_roles, copies
from cachegen_cli.kvcache.writing import LAYOUTS, save_cache
from cachegen_cli.promptcache.layouts import FINGERPRINT, TOKENS

__all__ = [
    "FINGERPRINT",
    "LAYOUTS",
    "TOKENS",
    "CacheFile",
    "LayerKV",
    "Ranks",
    "Stored",
    "assign_roles",
    "copies",
    "fork",
    "join",
    "make_cache",
    "read_cache",
    "read_entry",
    "save_cache",
    "split",
    "untouched",
]
