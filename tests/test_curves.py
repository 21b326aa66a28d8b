"""Curves of a scheme around a target, on made figures whose right values are known."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import exp, log, log2

import numpy as np
import pytest

from cachegen_cli.curves import Aim, Curve
from cachegen_cli.ladders import ladder
from cachegen_cli.quality import Positions
from cachegen_cli.results.candidates import Candidate, Target
from cachegen_cli.results.settings import Settings

_N = 64


def quality(kl):
    positions = Positions(np.full(_N, kl), np.ones(_N, bool), -np.ones(_N), -np.ones(_N), (_N,))
    return positions.quality()


class Made:
    """Settings whose KL and bits are formulas of ``loss`` (error, 1 / bins, 2^-bits)."""

    def __init__(self, kl, bits, draws=None):
        self.kl, self.bits, self.draws, self.asked = kl, bits, draws, []

    def __call__(self, settings):
        self.asked.append(settings)
        options = settings.options
        if settings.key_bits:
            loss = (2.0**-settings.key_bits + 2.0**-settings.value_bits) / 2
        else:
            loss = options.get("error") or 1 / options.get("bins", 20)
        kl = self.kl(loss)
        name = f"{settings.scheme_text} {settings.widths}"
        draws = None if self.draws is None else kl * self.draws
        return Candidate(name, settings, 1000, self.bits(loss), quality(kl)), draws


def made(scheme, kl=lambda loss: 4 * loss**2, bits=lambda loss: -log2(loss), draws=None, **base):
    measure = Made(kl, bits, draws)
    steps = ladder(Settings(scheme=scheme, **base))
    return Curve(scheme, steps, measure), measure


def kl_aim(kl, draws=None):
    return Aim(Target("kl_nats", kl), draws)


@pytest.mark.parametrize("scheme", ["uniform", "cachegen"])
@pytest.mark.parametrize("kl", [0.001, 0.0123, 0.2])
def test_two_points_within_a_tenth_and_the_right_reading(scheme, kl):
    curve, measure = made(scheme)
    curve.approach(kl_aim(kl))
    standing, _ = curve.standing(kl_aim(kl))
    assert standing.kl_nats == pytest.approx(kl)
    # bits = -log2(loss) and KL = 4 loss^2 make a straight curve
    assert standing.coded_bits_per_element == pytest.approx(-log2((kl / 4) ** 0.5))
    known = {p.candidate.name: p.candidate.quality.kl_nats for p in curve.points}
    ratios = sorted(known[name] / kl for name in standing.read_from)
    above, below = min(r for r in ratios if r > 1), max(r for r in ratios if r <= 1)
    if scheme == "uniform":
        assert 0.9 <= below <= 1 <= above <= 1.1
    else:  # nothing lies between neighbouring even bins
        bins = {known[name] / kl: int(name.split("=")[1].split()[0]) for name in standing.read_from}
        assert bins[below] - bins[above] == 2
    assert abs(log(known[standing.nearest] / kl)) == min(abs(log(r)) for r in ratios)
    assert len(measure.asked) <= 8


def test_a_size_as_the_target():
    curve, _ = made("uniform", draws=np.array([0.5, 1.0, 2.0] * 100))
    aim = Aim(Target("coded_bits_per_element", 3.21))
    curve.approach(aim)
    standing, draws = curve.standing(aim)
    kl = 4 * (2**-3.21) ** 2
    assert standing.coded_bits_per_element == pytest.approx(3.21)
    assert standing.kl_nats == pytest.approx(kl)
    assert (standing.low, standing.high) == (pytest.approx(kl / 2), pytest.approx(2 * kl))
    assert np.exp(draws).mean() == pytest.approx(kl * 3.5 / 3)


def test_the_setting_that_is_the_target_has_no_error():
    draws = np.linspace(0.5, 2, 400)
    curve, measure = made("mlx", draws=draws)
    own = 4 * (2.0**-4) ** 2
    aim = kl_aim(own, own * draws)
    curve.approach(aim)
    standing, _ = curve.standing(aim)
    assert standing.coded_bits_per_element == 4 and standing.margin == 0
    assert standing.nearest == "mlx 4" and standing.read_from == ("mlx 4",)
    assert len(measure.asked) == 3  # what is there already is not measured again


def test_errors_are_paired():
    """A KL that moves with the target's leaves no error; one that does not, the target's own."""
    draws = np.linspace(0.8, 1.25, 400)
    same, _ = made("uniform", draws=draws)
    still, _ = made("uniform", draws=np.ones(400))
    aim = kl_aim(0.01, 0.01 * draws)
    for curve in (same, still):
        curve.approach(aim)
    assert same.standing(aim)[0].margin == pytest.approx(0, abs=1e-9)
    found = still.standing(aim)[0]
    # a factor in the KL is half of it in the error, so half a bit by doubling
    low, high = np.quantile(draws, [0.025, 0.975])
    assert found.high - found.low == pytest.approx(log2(high / low) / 2, rel=1e-3)


def test_a_noisy_curve_is_followed_and_ends():
    """KL that jumps by a fifth from setting to setting: the error tells so."""
    noise = {}

    def kl(loss):
        random = np.random.default_rng(int(1e9 * loss))
        return noise.setdefault(loss, 4 * loss**2 * exp(0.2 * random.standard_normal()))

    for target in (0.003, 0.01, 0.03):
        curve, measure = made("uniform", kl, draws=np.ones(2000))
        curve.approach(kl_aim(target))
        standing, _ = curve.standing(kl_aim(target))
        assert len(measure.asked) <= 10
        right = -log2((target / 4) ** 0.5)
        assert standing.coded_bits_per_element == pytest.approx(right, abs=0.3)
        assert 0 < standing.margin < 0.5


def test_between_widths_the_better_mix_counts():
    def kl_of(key_weight):
        def measure(settings):
            loss = key_weight * 4.0**-settings.key_bits + 4.0**-settings.value_bits
            bits = (settings.key_bits + settings.value_bits) / 2
            name = f"{settings.scheme_text} {settings.widths}"
            return Candidate(name, settings, 1000, bits, quality(loss)), None

        return measure

    for key_weight, better, worse in ((10, "group K4 V3", "group K3 V4"),
                                      (0.1, "group K3 V4", "group K4 V3")):  # fmt: skip
        curve = Curve("group", ladder(Settings()), kl_of(key_weight))
        aim = kl_aim((key_weight + 1) * 4.0**-3.5)
        curve.approach(aim)
        standing, _ = curve.standing(aim)
        assert better in standing.read_from and worse not in standing.read_from
        assert {better, worse} <= {p.candidate.name for p in curve.points}


def test_targets_that_nothing_meets():
    curve, _ = made("uniform", lambda loss: 0.01 + loss**2)  # a floor
    curve.approach(kl_aim(0.005))
    assert curve.standing(kl_aim(0.005)) is None
    assert "at its least loss, uniform:error=1e-06" in curve.why_not(kl_aim(0.005))
    assert "KL 0.01" in curve.why_not(kl_aim(0.005))
    curve, _ = made("mlx")
    curve.approach(kl_aim(50.0))
    assert curve.standing(kl_aim(50.0)) is None
    assert "at its most loss, mlx 2" in curve.why_not(kl_aim(50.0))


def test_the_default_bins_are_measured_but_not_on_the_curve():
    curve, measure = made("cachegen")
    aim = kl_aim(4 * (1 / 20) ** 2)  # just what the schedule by layer has here
    curve.approach(aim)
    standing, _ = curve.standing(aim)
    assert Settings(key_bits=0, value_bits=0, scheme="cachegen") in measure.asked
    assert standing.nearest.startswith("cachegen:bins=20")


def test_schemes_and_options():
    assert ladder(Settings(scheme="exact")) is None
    steps = ladder(Settings(scheme="cachegen", options={"chunk": 64}))
    assert all(rung.options["chunk"] == 64 for rung in steps.rungs)
    assert [rung.options["bins"] for rung in steps.rungs] == list(range(4, 257, 2))
    assert [rung.key_bits for rung in ladder(Settings(scheme="mlx")).rungs] == [2, 3, 4, 5, 6, 8]
    errors = [rung.options["error"] for rung in ladder(Settings(scheme="uniform")).rungs]
    assert errors == sorted(set(errors), reverse=True) and errors[0] == 1.0
    assert max(a / b for a, b in pairwise(errors)) < 1.03
    assert replace(steps.rungs[3], options={}).options == {}


def test_a_knee_is_not_read_off_beyond_its_points():
    """A floor that the KL falls to steeply: the reading lies between the settings around it."""
    curve, measure = made(
        "uniform",
        lambda loss: 0.01 + 100 * max(loss - 0.02, 0) ** 2,
        draws=np.linspace(0.9, 1.1, 400),
    )
    for target in (0.0105, 0.012, 0.05):
        aim = kl_aim(target)
        curve.approach(aim)
        standing, _ = curve.standing(aim)
        right = -log2(0.02 + ((target - 0.01) / 100) ** 0.5)
        assert standing.coded_bits_per_element == pytest.approx(right, abs=0.3)
        assert 0 < standing.low <= standing.high < 8
    assert len(measure.asked) < 27


def test_what_scatters_is_not_shared_between_schemes():
    """Two curves of the same jumps do not cancel them."""

    def kl(loss):
        return 4 * loss**2 * (1.3 if round(1e4 * loss) % 2 else 0.8)

    read = []
    for name in ("one", "other"):
        curve = Curve(
            name, ladder(Settings(scheme="uniform")), Made(kl, lambda x: -log2(x), np.ones(2000))
        )
        curve.approach(kl_aim(0.01))
        read.append(curve.standing(kl_aim(0.01))[1])
    assert read[0].std() == pytest.approx(read[1].std(), rel=0.1)
    assert (read[0] - read[1]).std() > 1.2 * read[0].std()
