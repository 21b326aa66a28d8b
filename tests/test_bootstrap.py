"""Errors of means over positions, against closed forms and simulated series."""

from __future__ import annotations

import numpy as np
import pytest

from cachegen_cli.bootstrap import BLOCK, DRAWS, interval, resampled_means


def series(n: int, correlation: float, seed: int) -> np.ndarray:
    """Heavy-tailed positive values whose neighbours are alike, of mean exp(1/2)."""
    random = np.random.default_rng(seed)
    x = random.standard_normal(n)
    for i in range(1, n):
        x[i] = correlation * x[i - 1] + np.sqrt(1 - correlation**2) * x[i]
    return np.exp(x)


def test_the_variance_is_that_of_block_means():
    values = series(256, 0.65, 1)
    draws = resampled_means(values, (256,))
    assert draws.shape == (DRAWS,)
    circle = np.concatenate([values, values[:BLOCK]])
    blocks = [circle[i : i + BLOCK].mean() for i in range(256)]
    assert draws.mean() == pytest.approx(values.mean(), rel=0.02)
    assert draws.std() == pytest.approx(np.std(blocks) / np.sqrt(256 / BLOCK), rel=0.05)


def test_neighbours_that_are_alike_make_the_error_larger():
    apart, alike = series(1024, 0.0, 2), series(1024, 0.8, 2)
    for values, low, high in ((apart, 0.8, 1.2), (alike, 1.6, 4.0)):
        as_if_independent = values.std(ddof=1) / np.sqrt(values.size)
        assert low < resampled_means(values, (1024,)).std() / as_if_independent < high


def test_intervals_hold_the_mean_about_as_often_as_they_say():
    held = 0
    for seed in range(200):
        low, high = interval(resampled_means(series(256, 0.5, seed), (256,)))
        held += low <= np.exp(0.5) <= high
    assert held >= 170  # skewed values cost some of 190


def test_what_is_drawn_depends_on_the_lengths_alone():
    one, other = series(64, 0.5, 3), series(64, 0.5, 4)
    both = resampled_means(one, (64,)) - resampled_means(other, (64,))
    assert np.allclose(both, resampled_means(one - other, (64,)))
    assert np.allclose(resampled_means(3 * one, (64,)), 3 * resampled_means(one, (64,)))


def test_texts_are_resampled_each_within_itself():
    flat = np.concatenate([np.full(32, 1.0), np.full(96, 5.0)])
    assert np.allclose(resampled_means(flat, (32, 96)), 4.0)
    assert resampled_means(flat, (128,)).std() > 0.1


def test_few_positions():
    assert resampled_means(np.arange(7.0), (7,)) is None
    eight = np.arange(8.0)
    draws = resampled_means(eight, (8,))
    assert draws.std() == pytest.approx(eight.std() / np.sqrt(8), rel=0.05)
    assert draws.min() >= 0 and draws.max() <= 7
