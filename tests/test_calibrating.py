"""Profiles: what is learnt, against numpy over the same caches."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from tiny import LLAMA, make_model

from cachegen_cli import InputError, UsageError, analyze, calibrate, capture, load_model
from cachegen_cli.calibrating import units_of
from cachegen_cli.profilefiles import load_profile
from cachegen_cli.rows import no_rows
from cachegen_cli.schemes.cachegen import CacheGen

TEXTS = [
    "The river rose in the night and took the lower bridge with it. Nobody saw it go.",
    "def area(width, height):\n    return width * height\n\nprint(area(3, 4))\n" * 2,
    "Wer reitet so spät durch Nacht und Wind? Es ist der Vater mit seinem Kind.",
    "2024-05-01 12:00:03 install libfoo:amd64 1.2-3\n2024-05-01 12:00:04 status half-installed",
]


@pytest.fixture(scope="module")
def model(llama):
    return load_model(str(llama))


@pytest.fixture(scope="module")
def made(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "p.safetensors"
    return calibrate(model, TEXTS, path, weigh=2), load_profile(path)


def flat(kv, tensor, rotary=None):
    x = kv.keys if tensor == "keys" else kv.values
    x = rotary.undo(x, np.arange(x.shape[1])) if rotary else x.astype(mx.float32)
    return np.array(x.transpose(1, 0, 2).reshape(x.shape[1], -1)).astype(np.float64)


@pytest.fixture(scope="module")
def samples(model):
    """By tensor the rows [tokens, channels] of all texts, keys without their position."""
    captures = [capture(model, text) for text in TEXTS]
    return {
        tensor: np.concatenate([
            np.concatenate([
                flat(kv, tensor, c.rotaries[kv.layer] if tensor == "keys" else None)
                for kv in c.layers
            ], axis=1)
            for c in captures
        ])
        for tensor in ("keys", "values")
    }  # fmt: skip


@pytest.mark.parametrize("tensor", ["keys", "values"])
def test_the_basis_is_that_of_the_covariance(made, samples, tensor):
    result, profile = made
    x = samples[tensor]
    basis = profile.basis("model", range(4), tensor)
    assert np.allclose(np.array(basis.mean), x.mean(axis=0), atol=1e-5)
    vectors = np.array(basis.leading(128)).astype(np.float64)
    assert np.allclose(vectors @ vectors.T, np.eye(128), atol=0.02)  # 8 bits
    scale = np.array(basis.scale)
    deviation = np.sqrt(x.reshape(len(x), 4, 32).var(axis=0).mean(axis=1))
    weights = result.units[tensor == "values"].step_weights
    assert np.allclose(scale[::32], deviation / np.array(weights), rtol=1e-4)
    components = ((x - x.mean(axis=0)) / scale) @ vectors.T
    found = components.std(axis=0)
    assert (np.diff(basis.deviations) <= 1e-6).all()
    assert np.allclose(found[:40], basis.deviations[:40], rtol=0.03)
    uncorrelated = np.corrcoef(components[:, :20].T)
    assert np.abs(uncorrelated - np.eye(20)).max() < 0.05


def test_a_layer_has_a_basis_of_its_own(made, samples):
    _, profile = made
    x = samples["values"][:, 32:64]
    basis = profile.basis("layer", (1,), "values")
    scaled = (x - x.mean(axis=0)) / np.array(basis.scale)
    wanted = np.sqrt(np.maximum(np.linalg.eigvalsh(np.cov(scaled.T, bias=True))[::-1], 0))
    assert np.allclose(basis.deviations, wanted, rtol=1e-3, atol=1e-3)


def test_symbol_tables_are_counts_of_the_codec(made, model):
    _, profile = made
    counts = np.zeros((32, 31), np.int64)
    for text in TEXTS:
        kv = capture(model, text).layers[2]
        codes = np.array(
            CacheGen(32).code(kv.values, no_rows(kv.values.shape[1]), {}).planes[0].codes
        )
        for channel, row in enumerate(codes.reshape(32, -1)):
            counts[channel] += np.bincount(row, minlength=31)
    found = profile.symbols(2, "values", 32)
    assert found.shape == counts.shape and (found > 0).all()
    # those of the finest bins, joined: near, not equal
    shares, wanted = (part / part.sum(axis=1, keepdims=True) for part in (found, counts))
    assert np.abs(shares - wanted).sum(axis=1).mean() < 0.25


def test_the_report_says_what_is_in_it(made):
    result, profile = made
    across = [unit for unit in result.units if len(unit.layers) == 4]
    assert [unit.tensor for unit in across] == ["keys", "values"]
    assert len(result.units) == 2 + 2 * 4
    assert all(unit.channels == 128 and unit.components == 128 for unit in across)
    assert all(unit.energy == pytest.approx(1) for unit in across)
    assert profile.info == result.profile
    assert profile.info.texts == 4 and profile.info.tokens == result.run.prompt.tokens
    assert profile.info.profile_bytes == Path(profile.info.file).stat().st_size
    assert "calibration_seconds" in result.run.timing


def test_weights_are_one_in_the_mean_or_not_measured(made, model, tmp_path):
    result, _ = made
    weights = [w for unit in result.units[:2] for w in unit.step_weights]
    assert all(0.25 <= w <= 4 for w in weights) and max(weights) > 1 > min(weights)
    alike = calibrate(model, TEXTS[:2], tmp_path / "a.safetensors", weigh=0)
    assert {w for unit in alike.units for w in unit.step_weights} == {1.0}


def test_the_same_texts_give_the_same_file(model, tmp_path):
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for file in files:
        calibrate(model, TEXTS[:2], file, weigh=0)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_few_components_hold_less(model, tmp_path):
    result = calibrate(model, TEXTS, tmp_path / "a.safetensors", components=5, weigh=0)
    assert all(unit.components == 5 and 0.1 < unit.energy < 1 for unit in result.units)


def test_wide_models_are_split(model, tmp_path):
    result = calibrate(model, TEXTS[:2], tmp_path / "a.safetensors", channels=64, weigh=0)
    across = [unit.layers for unit in result.units if len(unit.layers) > 1]
    assert across == [(0, 1), (0, 1), (2, 3), (2, 3)]
    alone = calibrate(model, TEXTS[:2], tmp_path / "b.safetensors", channels=1, weigh=0)
    assert [unit.layers for unit in alone.units[::2]] == [(0,), (1,), (2,), (3,)]
    found = analyze(model, "abc" * 9, scheme="transform", profile=tmp_path / "a.safetensors")
    assert [layer.layers for layer in found.measurement.layers] == [(0, 1), (2, 3)]


def test_windows_do_not_join_with_growing_entries(sliding, tmp_path):
    text = capture(str(sliding), "It was a quiet night on the river. " * 3)
    assert [unit.layers for unit in units_of(text, 9999)] == [(0, 2), (1, 3)]
    path = tmp_path / "p.safetensors"
    calibrate(str(sliding), TEXTS, path, weigh=1)
    found = analyze(text, scheme="transform:error=0.02", profile=path).measurement
    assert [(row.label, row.tokens) for row in found.layers] == [("0,2", 24), ("1,3", 105)]
    assert found.totals.relative_rms_error < 0.2


def test_a_profile_of_another_model_is_refused_before_anything_runs(made, tmp_path, monkeypatch):
    _, profile = made
    other = make_model(tmp_path / "other", LLAMA | {"rms_norm_eps": 1e-5, "hidden_size": 32})
    monkeypatch.setattr("cachegen_cli.captures.prefill", None)
    with pytest.raises(InputError, match="of another model"):
        analyze(str(other), "abcdef", scheme="transform", profile=profile.info.file)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"channels": 0}, UsageError),
        ({"components": 0}, UsageError),
        ({"weigh": -1}, UsageError),
        ({"prompt": []}, InputError),
        ({"prompt": None}, InputError),
        ({"prompt": ["abc"]}, InputError),  # too short to weigh with
    ],
)
def test_what_cannot_be_calibrated(model, tmp_path, arguments, kind):
    path = tmp_path / "p.safetensors"
    with pytest.raises(kind):
        calibrate(model, **({"prompt": TEXTS[:1], "path": path} | arguments))
    assert not path.exists()


def test_the_same_weights_that_rotate_otherwise_are_another_model(made, tmp_path):
    _, profile = made
    other = make_model(tmp_path / "other", LLAMA | {"rope_theta": 20000.0})
    with pytest.raises(InputError, match="of another model"):
        analyze(str(other), "abcdef", scheme="transform", profile=profile.info.file)


@pytest.mark.parametrize("place", [0.1, 0.4, 0.7, 0.97])
def test_a_flipped_bit_is_noticed(made, tmp_path, place):
    data = bytearray(Path(made[1].info.file).read_bytes())
    data[int(place * len(data))] ^= 4
    path = tmp_path / "p.safetensors"
    path.write_bytes(data)
    with pytest.raises(InputError, match="profile"):
        load_profile(path)


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "other", "garbled"])
def test_files_that_are_no_profiles(made, tmp_path, damage):
    data = Path(made[1].info.file).read_bytes()
    path = tmp_path / "p.safetensors"
    if damage == "other":
        mx.save_safetensors(str(path), {"a": mx.zeros(3)})
    elif damage == "garbled":
        path.write_bytes(data.replace(b'"version":"1"', b'"version":"9"'))
    elif damage != "missing":
        path.write_bytes(b"" if damage == "empty" else data[: len(data) // 2])
    with pytest.raises(InputError, match="profile"):
        load_profile(path)


def test_a_file_that_changes_meanwhile_is_noticed(made, model, tmp_path):
    path = tmp_path / "p.safetensors"
    path.write_bytes(Path(made[1].info.file).read_bytes())
    found = analyze(model, "abcdef", scheme="transform", profile=path)
    calibrate(model, TEXTS[:2], path, weigh=0)
    from cachegen_cli.measuring import measure

    with pytest.raises(InputError, match="is another one now"):
        measure(capture(model, "abcdef"), found.measurement.settings)
